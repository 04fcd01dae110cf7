"""A vendor's first step: a pip project with a plugin that works on the host."""
