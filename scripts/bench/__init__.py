"""Benchmarks, each with its command in docs/benchmarks.md."""
