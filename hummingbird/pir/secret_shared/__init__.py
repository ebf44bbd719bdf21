"""Lookups whose rows stay secret-shared between the two servers, for a private net that they run."""
