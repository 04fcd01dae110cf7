"""The algorithms: each writes programs for any number of ranks."""
