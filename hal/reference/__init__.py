"""The reference device: slow, obviously correct, and hostile to callers that forget a wait.

It runs hal-tile/1 programs by interpretation. It is also the template of a vendor's plugin:
`plugin` finds and opens devices, `describe` says what they are, `machine` does the work.
"""
