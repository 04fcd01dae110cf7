"""What only a GPU can show, by one command: `python -m benchmarks.gpu`."""
