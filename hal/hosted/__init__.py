"""What a driver without queues of its own is made of: host threads run its timelines.

`HostedDevice` implements the whole contract over a `Machine`, which allocates, reads, writes,
compiles and runs at once.
"""
