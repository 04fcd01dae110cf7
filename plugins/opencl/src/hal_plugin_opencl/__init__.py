"""OpenCL devices: programs in OpenCL C, compiled by the driver.

`plugin` lists and opens devices, `find` finds them, `describe` says what they are, `machine` does
the work, `programs` compiles, `calibrate` measures.
"""
