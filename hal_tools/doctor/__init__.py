"""Why each installed, or half installed, plugin does or does not work, and what to do about it."""
