"""Client and server of encrypted inference as programs, over gRPC or through files."""
