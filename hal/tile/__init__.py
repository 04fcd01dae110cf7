"""The portable kernel format: tile IR, its text, verifier, interpreter and rewriting engine."""
