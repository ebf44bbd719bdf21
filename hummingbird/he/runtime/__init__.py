"""Execution of a plan: the client, which has the key, the server, which has the weights, and their messages."""
