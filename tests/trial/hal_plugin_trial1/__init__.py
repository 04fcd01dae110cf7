"""A small device that can train: its queues are threads, its compiler a process."""
