"""The operations in plain torch: slow, obvious, on any device, and the definition of what is right."""
