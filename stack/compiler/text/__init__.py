"""Writers of program formats."""
