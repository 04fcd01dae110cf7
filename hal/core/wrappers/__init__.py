"""What may stand between a caller and a device: checks, races, traces, faults, fallbacks."""
