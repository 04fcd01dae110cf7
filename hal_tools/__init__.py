"""The `hal` command: why a plugin fails, the project of a new one, the contract as a manual."""
