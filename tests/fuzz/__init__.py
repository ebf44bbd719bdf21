"""Random nets by private inference and by torch: `python -m tests.fuzz.nets`."""
