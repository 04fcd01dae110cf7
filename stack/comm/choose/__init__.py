"""Which program a call runs: by a model of its time, by measurements, or by the user's word."""
