"""CUDA devices: programs in CUDA C, compiled by NVRTC, run by the driver's own interface.

`plugin` lists and opens devices, `find` finds them, `describe` says what they are, `driver` has the
driver's functions, `machine` does the work on `streams` and `graphs`, `programs` loads what `nvrtc`
compiles and checks it by `cubin`. `shared` is memory for other processes, `lt` the vendor's
products; `wheels` finds the vendor's libraries."""
