"""`hal bench comm`: how long collectives take in a group of ranks."""
