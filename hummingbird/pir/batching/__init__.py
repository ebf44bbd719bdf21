"""Many lookups in one inference by a public plan, with the same number of keys for every inference."""
