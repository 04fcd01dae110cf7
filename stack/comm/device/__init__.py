"""Collectives on the memory of devices, between the other work of their timelines."""
