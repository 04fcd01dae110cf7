"""Servers in processes of their own."""

import os
import select
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

# Without the plugin there is nothing to test; `make test` installs it.
collect_ignore_glob = [] if find_spec("hal_plugin_remote") else ["test_*.py"]

HAL = str(Path(sys.executable).with_name("hal"))
END_S = 60.0


@pytest.fixture
def hal_command():
    return HAL


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Starts a server of these devices, which `remote:0` and so on are then at: on a local socket,
    or over TCP. Gives the server's process."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret of more than 16 bytes")
    secret.chmod(0o600)
    monkeypatch.setenv("HAL_REMOTE_SECRET", str(secret))
    with ExitStack() as stack:

        def start(*devices, tcp=False, **environment):
            at = "127.0.0.1:0" if tcp else f"unix:{tmp_path / 'socket'}"
            surroundings = {**os.environ, **environment}
            server = stack.enter_context(
                subprocess.Popen(
                    [HAL, "serve", *devices, "--at", at],
                    env=surroundings,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(server.wait, END_S)
            stack.callback(server.terminate)
            assert select.select([server.stdout], [], [], END_S)[0], "the server says nothing"
            line = server.stdout.readline().strip()
            assert line.startswith("HAL_REMOTE='"), line
            monkeypatch.setenv("HAL_REMOTE", line.removeprefix("HAL_REMOTE='").removesuffix("'"))
            return server

        yield start
