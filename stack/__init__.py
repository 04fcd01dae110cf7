"""The training stack, written once against the device contract; no vendor occurs here."""
