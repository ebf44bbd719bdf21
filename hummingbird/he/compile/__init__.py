"""Compiler from a traced net to a plan: which role computes each step, bounds of its values, and scales."""
