"""Features: a declared one works, an undeclared one is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hal.core.description import Feature
from hal.core.errors import Failure, FailureKind, Scope, StaleHandle, Unsupported
from hal.core.spec import OPTIONAL
from hal.core.values import (
    AllocOptions,
    Collective,
    CollectiveKind,
    Fault,
    FillCommand,
    Graph,
    Group,
    GroupSpec,
    Operator,
    Point,
    SharedHandle,
)
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.probe import check_refused
from hal_conformance.rig import Rig

description_features = Cases("B", Level.CORE)


def _map(rig: Rig) -> None:
    buffer = rig.buffer(b"device")
    expect.equal(bytes(rig.device.map(buffer.region(), False)), b"device", "the mapped bytes")


def _import_host(rig: Rig) -> None:
    memory = bytearray(b"host")
    buffer = rig.device.import_host(memoryview(memory))
    expect.same_bytes(rig.read(buffer), b"host", "imported host memory")


def _ipc(rig: Rig) -> None:
    buffer = rig.device.alloc(64, AllocOptions(shareable=True))
    shared = rig.device.export_buffer(buffer)
    expect.equal(shared.nbytes, 64, "the size of the exported buffer")


def _graph(rig: Rig) -> None:
    buffer = rig.buffer(bytes(4))
    graph = rig.device.record([FillCommand(buffer.region(), b"g")])
    rig.done(rig.device.replay(graph, (), rig.timeline(), ()))
    expect.same_bytes(rig.read(buffer), b"gggg", "what the graph filled")


def _host_call(rig: Rig) -> None:
    called: list[int] = []
    rig.done(rig.device.host_call(lambda: called.append(1), rig.timeline(), ()))
    expect.equal(called, [1], "the calls of the host function")


def _timestamps(rig: Rig) -> None:
    point = rig.device.fill(rig.buffer(64).region(), b"t", rig.timeline(), ())
    rig.done(point)
    spans = rig.device.timestamps(point)
    expect.equal(len(spans), 1, "the number of spans of one fill")


def _stats(rig: Rig) -> None:
    before = rig.device.stats("").allocations
    rig.buffer(64)
    expect.equal(rig.device.stats("").allocations, before + 1, "the number of allocations")


def _reset(rig: Rig) -> None:
    buffer = rig.buffer(b"old")
    epoch = rig.device.health().epoch
    expect.that(rig.device.reset() > epoch, "a reset did not begin a new epoch")
    expect.raises(StaleHandle, rig.device.free, buffer)


def _subscribe(rig: Rig) -> None:
    rig.device.subscribe(lambda failure: None)


FAULT = Failure(FailureKind.LAUNCH_FAULT, Scope.OPERATION, "", "fill", "injected")


def _inject(rig: Rig) -> None:
    region = rig.buffer(64).region()
    rig.device.inject(Fault(FAULT, "fill"))
    failed = rig.failed(rig.device.fill(region, b"i", rig.timeline(), ()))
    expect.equal(failed.kind, FAULT.kind, "the kind of the injected failure")


def _peer_copy(rig: Rig) -> None:
    linked = [link.peer for link in rig.info.links]
    if not linked:
        raise expect.Unfit("the device has no link now")
    peer = rig.open(linked[0])
    source = rig.buffer(b"from a peer", peer)
    target = rig.buffer(source.nbytes)
    rig.done(rig.device.copy(target.region(), source.region(), rig.timeline(), ()))
    expect.same_bytes(rig.read(target), b"from a peer", "what came from the peer")


def _alone(rig: Rig) -> GroupSpec:
    return GroupSpec(f"alone {rig.name} {rig.random.integers(1 << 62)}", 0, (rig.name,), 5.0)


def _collectives(rig: Rig) -> None:
    dtype = next(iter(rig.info.dtypes))
    data = rig.buffer(np.frombuffer(bytes(dtype.nbytes), np.uint8))
    group = rig.device.create_group(_alone(rig))
    call = Collective(CollectiveKind.BROADCAST, dtype, 1)
    region = data.region()
    rig.done(rig.device.collective(group, call, region, region, rig.timeline(), ()))
    expect.equal(rig.device.async_error(group), None, "the group's failure")


def _group_ipc(rig: Rig) -> None:
    expect.that(Feature.COLLECTIVES in rig.info.features, "group-ipc without collectives")


def _operators(rig: Rig) -> None:
    for operator in rig.device.operators():
        program = rig.device.load_operator(operator, dict(operator.conditions))
        expect.equal(program.params, operator.params, f"the parameters of {operator.name}")


PROBES: Mapping[Feature, Callable[[Rig], None]] = {
    Feature.MAP: _map,
    Feature.IMPORT_HOST: _import_host,
    Feature.IPC: _ipc,
    Feature.GRAPH: _graph,
    Feature.HOST_CALL: _host_call,
    Feature.TIMESTAMPS: _timestamps,
    Feature.STATS: _stats,
    Feature.RESET: _reset,
    Feature.SUBSCRIBE: _subscribe,
    Feature.INJECT: _inject,
    Feature.PEER_COPY: _peer_copy,
    Feature.COLLECTIVES: _collectives,
    Feature.GROUP_IPC: _group_ipc,
    Feature.OPERATORS: _operators,
}


@description_features.case("declared", "feature.declared", feature=tuple(Feature))
def _(rig: Rig, feature: Feature) -> None:
    if feature not in rig.info.features:
        raise expect.Unfit(f"the device does not declare {feature.value}")
    PROBES[feature](rig)


def calls(rig: Rig) -> Mapping[str, tuple[Any, ...]]:
    """Arguments of each optional hook, right but for what only the hook itself could give."""
    device, epoch = rig.name, rig.device.health().epoch
    region, timeline = rig.buffer(8).region(), rig.timeline()
    group, graph = Group(device, epoch, None, 0, 1), Graph(device, epoch, None, 0, 0)
    call = Collective(CollectiveKind.BARRIER, next(iter(rig.info.dtypes)), 0)
    return {
        "map": (region, False),
        "import_host": (memoryview(bytearray(8)),),
        "export_buffer": (region.buffer,),
        "import_buffer": (SharedHandle("none", (), 8),),
        "record": ([FillCommand(region, b"r")],),
        "replay": (graph, (), timeline, ()),
        "host_call": (lambda: None, timeline, ()),
        "timestamps": (Point(timeline, 0),),
        "stats": ("",),
        "reset": (),
        "subscribe": (lambda failure: None,),
        "inject": (Fault(FAULT, "fill"),),
        "create_group": (_alone(rig),),
        "collective": (group, call, region, region, timeline, ()),
        "abort": (group, FAULT),
        "async_error": (group,),
        "shrink": (group, (0,)),
        "operators": (),
        "load_operator": (Operator("matmul", ()), {}),
    }


@description_features.case("undeclared", "feature.undeclared", hook=tuple(OPTIONAL))
def _(rig: Rig, hook: str) -> None:
    if OPTIONAL[hook] in rig.info.features:
        raise expect.Unfit(f"the device declares {OPTIONAL[hook].value}")
    buffer = rig.buffer(b"before")
    before = rig.device.fill(rig.buffer(1).region(), b"-", rig.timeline(), ())
    health = rig.device.health()
    expect.raises(Unsupported, getattr(rig.device, hook), *calls(rig)[hook])
    after = rig.device.fill(rig.buffer(1).region(), b"-", rig.timeline(), ())
    values = after.value - before.value
    expect.that(values <= 2, f"{values - 1} operations more are on the timeline")
    expect.equal(rig.device.health(), health, "the health afterwards")
    expect.same_bytes(rig.read(buffer), b"before", "a buffer afterwards")


@description_features.case("undeclared-shareable", "feature.undeclared")
def _(rig: Rig) -> None:
    if Feature.IPC in rig.info.features:
        raise expect.Unfit("the device declares ipc")
    expect.raises(Unsupported, rig.device.alloc, 64, AllocOptions(shareable=True))


@description_features.case("undeclared-peer-copy", "feature.undeclared", devices=2)
def _(rig: Rig) -> None:
    if Feature.PEER_COPY in rig.info.features:
        raise expect.Unfit("the device declares peer-copy")
    check_refused(rig, Feature.PEER_COPY)
