"""Client and server of encrypted inference as two programs, over gRPC."""
