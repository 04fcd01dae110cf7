"""The reference device: slow, obviously correct, and hostile to callers that forget a wait.

It runs hal-tile/1 programs by interpretation. Its parts:
`plugin` finds and opens devices, `describe` says what they are, `machine` does the work.
"""
