"""The native engine under a group of ranks: links, collectives, failure detection."""
