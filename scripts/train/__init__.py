"""Training of the nets of `models`, and their data."""
