"""The operations in plain torch, on any device: slow and obvious, they define the right results."""
