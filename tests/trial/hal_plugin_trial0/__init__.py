"""A small device that nobody tuned the suite for."""
