"""Queues, quotas and placement for many jobs on many hosts, decided purely.

`Scheduler.handle(event)` takes what has happened and returns what is to be done; it has no clock,
no process and no randomness, so a simulation, a daemon and a test run the same decisions. An engine
that carries them out starts a gang on the hosts that a decision names and reports what becomes of
it."""
