"""A whole small device for tests: memory is bytearrays, programs are Python."""
