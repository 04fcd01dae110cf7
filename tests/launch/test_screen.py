"""What is shown on a terminal, and in which order."""

import os
import pty
import subprocess
import sys

from tests.launch.running import LONG_S, read_to_end

SHOW = """
from stack.launch.screen import Screen, standard_sinks

screen = Screen([0], None, standard_sinks())
screen.progress("hal run: running")
screen.wrote(0, "stdout", b"two\\n")  # before the terminal took any of it
screen.close(60.0)
"""


def test_a_line_comes_after_the_progress_that_it_takes_away():
    screen, terminal = pty.openpty()
    command = [sys.executable, "-c", SHOW]
    plain = {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=plain) as process:
        try:
            os.close(terminal)
            got = read_to_end(screen)
            assert process.wait(LONG_S) == 0
        finally:
            process.kill()
    os.close(screen)
    assert got == b"\r\x1b[Khal run: running\r\x1b[K[0] two\r\n"
