"""Where a job meets: a small table of bytes that the launcher serves to all ranks."""

from stack.comm.store.client import Store
from stack.comm.store.lease import Hold, Lease
from stack.comm.store.server import StoreServer
from stack.comm.store.table import Usage
from stack.comm.store.watch import Change, Watch
from stack.comm.store.wire import StoreError

__all__ = ["Change", "Hold", "Lease", "Store", "StoreError", "StoreServer", "Usage", "Watch"]
