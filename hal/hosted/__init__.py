"""What a driver without queues of its own is made of, or one with queues that know only order.

`HostedDevice` implements the whole contract over a `Machine`, which allocates, reads, writes,
compiles and runs at once, and whose timelines host threads run; or over a `StreamMachine`, whose
driver has queues.
"""
