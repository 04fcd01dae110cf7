"""The portable kernel format: tile IR nodes, kernels, text, verifier, interpreter, rewriting engine."""
