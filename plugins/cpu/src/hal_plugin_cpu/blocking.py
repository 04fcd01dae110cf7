"""Native calls that may block: they give the interpreter lock up, unlike those of `lib`."""

from __future__ import annotations

from hal_plugin_cpu._native import ffi, lib

wait = ffi.addressof(lib, "hc_wait")
quiesce = ffi.addressof(lib, "hc_quiesce")
shut = ffi.addressof(lib, "hc_shut")
reset = ffi.addressof(lib, "hc_reset")
host_next = ffi.addressof(lib, "hc_host_next")
