"""Which plugins are installed, what they say of themselves unimported, and how one is loaded."""
