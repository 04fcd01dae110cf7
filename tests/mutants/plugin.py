"""Mutants of plugins: import, enumeration, opening, what sessions leave behind."""

import os
from dataclasses import replace

from hal.core.values import AllocOptions, HealthState
from hal.hosted.device import HostedDevice
from hal.reference import plugin as reference
from tests.conformance.plugins import DEVICE
from tests.mutants.zoo import installed, mutant, opener

GOOD = DEVICE.replace(
    "    info = describe",
    """    if index != 0 or options.settings:
        raise InvalidCall(f"there is no device {index} or no setting {options.settings}")
    info = describe""",
    1,
).replace("import os\n", "import os\nfrom hal.core.errors import InvalidCall\n", 1)
GOOD = GOOD.replace("1 << 20", "64 << 20")
OPENS = "    info = describe"
LISTS = '    return [DeviceSummary(0, "a test")]'

installed(
    "import-writes-variable",
    "writes an environment variable when it is imported",
    "plugin.import",
    GOOD + '\nos.environ["VENDOR_HOME"] = "/opt/vendor"\n',
)

installed(
    "import-starts-thread",
    "starts a thread when it is imported",
    "plugin.import",
    GOOD + "\nimport threading, time\n"
    "threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n",
)

installed(
    "import-is-slow",
    "computes for a while when it is imported",
    "plugin.import",
    GOOD + "\nsum(range(20_000_000))\n",
)

installed(
    "enumerate-starts-thread",
    "starts a thread when it lists its devices",
    "enumerate.pure",
    GOOD.replace(
        LISTS,
        "    import threading, time\n"
        "    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n" + LISTS,
    ),
)

installed(
    "enumerate-writes-variable",
    "writes an environment variable when it lists its devices",
    "enumerate.pure",
    GOOD.replace(LISTS, '    os.environ["VENDOR_SEEN"] = "1"\n' + LISTS),
)

installed(
    "enumerate-changes",
    "lists its devices under other indices every second time",
    "enumerate.stable",
    GOOD.replace(
        LISTS,
        "    turns.append(0)\n"
        '    return [DeviceSummary(i, "a test") for i in range(1 + len(turns) % 2)]',
    )
    + "\nturns = []\n",
)

installed(
    "opens-any-index",
    "opens a device for every index",
    "open.refused",
    GOOD.replace("index != 0 or options.settings", "options.settings"),
)

installed(
    "ctrl-c-is-swallowed",
    "ends a wait at Ctrl-C as if its time had passed",
    "wait.interrupt",
    GOOD.replace("    return HostedDevice", "    device = HostedDevice")
    + """
    real = device.wait

    def wait(points, timeout_s, wait_all):
        try:
            return real(points, timeout_s, wait_all)
        except KeyboardInterrupt:
            return False

    device.wait = hookimpl(wait)
    return device
""",
)

installed(
    "exit-fails",
    "ends a process with status 3 in which a device is open",
    "open.leaks",
    GOOD.replace(OPENS, "    import atexit\n    atexit.register(os._exit, 3)\n" + OPENS),
)


@opener("ignores-settings", "ignores settings that it does not know", "open.refused")
def _(index, options):
    known = {k: v for k, v in options.settings.items() if k in reference.SETTINGS}
    return reference.open_device(index, replace(options, settings=known))


@opener("one-session", "gives the session that is open already", "open.sessions")
def _(index, options):
    session = _SESSIONS.get(index)
    if session is None or session.health().state is HealthState.CLOSED:
        session = _SESSIONS[index] = reference.open_device(index, options)
    return session


_SESSIONS: dict[int, HostedDevice] = {}


@mutant("leaks-a-descriptor", "leaves a descriptor open for every session", "open.leaks")
def _(device):
    os.open("/dev/null", os.O_RDONLY)


@mutant("leaks-a-thread", "leaves its thread running when it closes", "open.leaks")
def _(device):
    device._scheduler.stop = lambda: None


@mutant("leaks-memory", "keeps the memory of closed sessions", "open.leaks")
def _(device):
    _KEPT.append(device._session.machine.allocate(8 << 20, AllocOptions(zero=True)))


_KEPT: list[object] = []
