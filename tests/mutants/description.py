"""Mutants of what a device says about itself."""

import itertools
from dataclasses import replace

from hal.core.description import Feature, Link, MemorySpace, SpaceKind
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, Unsupported
from hal.core.values import Buffer
from tests.mutants.zoo import checked, declare, hook, lax, mutant

PRECISE = dict.fromkeys(DType, DType.F16)


@mutant("description-changes", "counts its descriptions in `facts`", "describe.constant")
def _(device):
    turn, info = itertools.count(), device.describe()

    def describe():
        return replace(info, facts={"asked": str(next(turn))})

    hook(device, describe)


@mutant(
    "fingerprint-of-the-session", "gives every session another fingerprint", "describe.constant"
)
def _(device):
    declare(device, fingerprint=f"{device.describe().fingerprint} {id(device)}")


@mutant("fingerprint-of-the-index", "gives equal devices different fingerprints", "describe.true")
def _(device):
    info = device.describe()
    declare(device, fingerprint=f"{info.fingerprint} of {info.name}")


@mutant("negative-limits", "says that it has -1 lanes", "describe.true")
def _(device):
    declare(device, limits=replace(device.describe().limits, lanes=-1))


@mutant("wrong-version", "says that it speaks contract 0", "describe.true")
def _(device):
    declare(device, contract=0)


@mutant("no-ulp-of-exp", "does not say how exact exp is", "describe.true")
def _(device):
    numeric = device.describe().numeric
    ulp = {name: bound for name, bound in numeric.ulp.items() if name != "exp"}
    declare(device, numeric=replace(numeric, ulp=ulp))


@mutant("sums-in-float16", "says that it adds every product in float16", "describe.true")
def _(device):
    declare(device, numeric=replace(device.describe().numeric, accumulate=PRECISE))


@mutant("link-to-nobody", "has a link to a device that there is not", "describe.true")
def _(device):
    info = device.describe()
    declare(device, links=(*info.links, Link("reference:99", "memory", 0, 0)))


@mutant("negative-rate", "declares -1 operations a second", "describe.true")
def _(device):
    declare(device, dtypes={**device.describe().dtypes, DType.F32: -1.0})


@mutant("granularity-of-3", "says that its memory is aligned to 3 bytes", "alloc.apart")
def _(device):
    (first, *others) = device.describe().spaces
    declare(device, spaces=(replace(first, granularity=3), *others))


@mutant("alloc-past-the-limit", "gives larger buffers than its limit says", "describe.limits")
def _(device):
    limits = device.describe().limits
    declare(device, limits=replace(limits, alloc_nbytes=limits.alloc_nbytes // 4))


@mutant("alloc-under-the-limit", "has no room for a buffer of its limit", "describe.limits")
def _(device):
    info = device.describe()
    (first, *others) = info.spaces
    size = first.nbytes * 2
    declare(
        device,
        limits=replace(info.limits, alloc_nbytes=size),
        spaces=(replace(first, nbytes=size), *others),
    )


@mutant("fewer-queues", "refuses the last timeline of its limit", "describe.limits")
def _(device):
    limits = device.describe().limits
    declare(device, limits=replace(limits, queues=limits.queues + 1))


@mutant("more-queues", "gives a timeline more than its limit", "describe.limits")
def _(device):
    limits = device.describe().limits
    declare(device, limits=replace(limits, queues=limits.queues - 1))


@mutant("small-scratchpad", "has less scratchpad than it says", "describe.limits")
def _(device):
    machine = device._session.machine
    real = machine.compile

    def compile(source):
        if "alloc" in source.text and any(
            int(n) > 4096 for n in _numbers(source.text.partition("alloc")[2])
        ):
            raise InvalidCall("the scratchpad is too small")
        return real(source)

    machine.compile = compile


def _numbers(text):
    return "".join(c if c.isdigit() else " " for c in text.partition("\n")[0]).split()


@mutant("claims-to-map", "declares that it maps memory, and does not", "feature.declared")
def _(device):
    def map(region, writable):
        raise Unsupported("this device maps no memory")

    hook(device, map)


@mutant(
    "claims-group-ipc", "declares groups between processes, without collectives", "feature.declared"
)
def _(device):
    features = device.describe().features - {Feature.COLLECTIVES}
    declare(device, features=features | {Feature.GROUP_IPC})


def _without_ipc(device):
    declare(device, features=device.describe().features - {Feature.IPC})


@lax(
    "shares-undeclared",
    "allocates shareable memory without declaring it",
    "feature.undeclared",
    device=_without_ipc,
)
def _(checks):
    def alloc(nbytes, options):
        return checks._new("alloc", Buffer, (yield))

    checked(checks, alloc)


@lax(
    "peers-undeclared",
    "copies from peers without declaring it",
    "feature.undeclared",
    device=lambda device: declare(
        device, features=device.describe().features - {Feature.PEER_COPY}
    ),
)
def _(checks):
    checks._is_peer = lambda where, buffer: buffer.device in checks._peers


@mutant("declares-too-fast", "declares that a launch takes a nanosecond", "declared.performance")
def _(device):
    declare(device, declared={"launch_s": 1e-9})


@mutant("declares-too-slow", "declares that a launch takes a minute", "declared.performance")
def _(device):
    declare(device, declared={"launch_s": 60.0})


@mutant("space-of-no-bytes", "has a host space of no bytes", "describe.true")
def _(device):
    space = MemorySpace("host", SpaceKind.HOST, 0, 64)
    declare(device, spaces=(*device.describe().spaces, space))
