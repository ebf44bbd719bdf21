"""Many lookups of one inference by a public plan, with the same keys for all inferences."""
