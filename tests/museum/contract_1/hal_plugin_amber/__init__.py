"""A plugin as vendors wrote it for contract version 1. Frozen: see tests/museum/README.md."""
