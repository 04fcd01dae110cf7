"""Training on several devices: a mesh of ranks, and functions that spread a model over it."""
