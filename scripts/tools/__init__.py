"""Measuring this machine, running on a GPU, and the table of nets of other packages."""
