"""The conformance suite: what a device must do to carry the stack, as named cases.

`hal conform DEVICE` runs it; docs/vendors.md leads through it.
"""
