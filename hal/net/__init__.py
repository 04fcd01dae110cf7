"""Connections between processes: how each side knows the other."""
