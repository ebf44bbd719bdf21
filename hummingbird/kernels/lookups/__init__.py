"""Lookups by distributed point functions: `dpf` makes keys and their selection bits, `rows` holds what they select."""
