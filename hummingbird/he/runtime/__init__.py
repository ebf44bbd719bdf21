"""A plan at work: the client, who has the key, the server, who has the weights, and all that crosses between them."""
