"""A net's plan: private layers, scales, prices, and the loop that runs them."""
