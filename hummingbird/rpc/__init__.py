"""Calls of clients that are not parties, over gRPC: servers, admission, certificates, tokens, logs and metrics."""
