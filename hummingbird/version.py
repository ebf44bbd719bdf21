"""The release, which the parties compare before they compute."""

VERSION = "0.1.0"
