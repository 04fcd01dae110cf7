"""Long trials of what must not break: `python -m benchmarks.soak.NAME`, seeded, in namespaces of
their own."""
