"""The release, compared between the parties before they compute."""

VERSION = "0.1.0"
