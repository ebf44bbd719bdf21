"""One of the two servers: its table, worker processes, updates, and its service over gRPC."""
