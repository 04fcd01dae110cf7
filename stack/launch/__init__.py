"""Starts the ranks of a job on one host or several, and ends them: `hal run`."""
