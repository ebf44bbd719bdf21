"""Rewriting of steps into others that compute the same function."""
