"""All that touches CrypTen: its tensors, its functions on our sessions, and what is refused."""
