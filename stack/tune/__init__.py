"""Tuning on the device: which schedule of a kernel is the fastest is measured, not computed.

A kernel's candidates come from `stack.compiler.tune`; they are built, checked and timed on a device
in a process of its own, and what is chosen is kept in the cache directory, from where every engine
of such a device takes it.
"""
