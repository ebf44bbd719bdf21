"""One of the two servers: its table, its worker processes, and its place on the wire."""
