"""What every test needs of its process."""

import signal

# A shell lets its background jobs ignore Ctrl-C, and children inherit that. Tests that interrupt
# themselves or a child need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
