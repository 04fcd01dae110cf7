"""Measurements behind every claim of speed: one file per claim, one driver, results as JSON."""
