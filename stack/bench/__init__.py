"""Measuring a device through the stack: its operators against its limits, and groups of ranks."""
