"""Device memory: a caching pool over raw slabs, and the static plan of a program's temporaries."""
