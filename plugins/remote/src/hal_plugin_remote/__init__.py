"""Devices of other machines and processes, behind the contract's own hooks."""
