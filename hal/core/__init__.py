"""The device contract: values, errors, hook specification, registry and device handle."""
