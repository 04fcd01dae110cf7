"""An emulator of the SW26010-Pro: what its programs compute, and how long the chip would take.

`chip` reads the figures, `native` runs slave-core programs and keeps their time, `toolchain`
compiles, `coregroup` drives the process that runs, `machine` and `plugin` make devices of it.
"""
