"""`hal serve`: offers this machine's devices to others."""

from __future__ import annotations

import signal
import threading

import click

import hal
from hal_plugin_remote.address import DEVICES_VARIABLE, LOCAL, SECRET_VARIABLE
from hal_plugin_remote.server import Server


@click.command()
@click.argument("devices", nargs=-1)
@click.option("--at", "address", required=True, help="HOST:PORT (0: any), or unix:/PATH.")
def serve(devices: tuple[str, ...], address: str) -> None:
    """Offer this machine's devices at an address, until it is interrupted.

    Other processes name them in HAL_REMOTE, as the first line of the output shows for DEVICES (all
    without). Whoever knows the secret runs programs here: the file HAL_REMOTE_SECRET has it (at
    least 16 bytes, closed to others, the same on both machines). A local socket serves this user
    alone, and needs none.
    """
    names = devices or tuple(row.name for row in hal.devices() if row.name)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with Server(address) as server:
        entries = " ".join(f"{server.address}/{name}" for name in names)
        click.echo(f"{DEVICES_VARIABLE}='{entries}'")
        if not address.startswith(LOCAL):
            click.echo(f"secret: the file that {SECRET_VARIABLE} names, on both sides", err=True)
        while not ended.wait(1.0):
            if server.ended.is_set():
                raise click.ClickException("the process that hears who calls has ended")
