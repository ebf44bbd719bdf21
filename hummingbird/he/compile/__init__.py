"""From a traced net to a plan: who computes which step, how large its values are, and at which scales."""
