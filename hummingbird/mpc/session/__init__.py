"""A run of the parties: how they meet, share tensors, and leave."""
