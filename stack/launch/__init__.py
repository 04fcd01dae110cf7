"""Starts the ranks of a job on one host or several, and ends them: `hal run`."""

DEFINITION = "reference"
"""The plugin that defines the contract: it is slow, so nothing runs on it unless it is named."""
