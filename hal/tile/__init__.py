"""The portable kernel format: tile IR, its text, verifier and interpreter."""
