"""Private layers of a net, on shares."""
