"""Mutants of collectives: results, members that disagree or do not come, abort, shrink."""

import itertools
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from hal.core.errors import DeadlineExceeded, InvalidCall, Scope
from hal.core.values import CollectiveKind, ReduceKind
from hal.core.wrappers import checks
from hal.hosted import arithmetic, communicator, groups, rendezvous
from hal.hosted.lock import LOCK
from tests.mutants.zoo import hook, mutant, world

Kind = CollectiveKind
FOLDS = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)


def _results(name, text, must, *kinds, when=lambda call: True):
    """Add a mutant whose collectives of these kinds give `change(call, sources, right results)`."""

    def add(change):
        real = arithmetic._results

        def wrong(call, sources):
            results = real(call, sources)
            applies = call.kind in kinds and when(call)
            return change(call, sources, results) if applies else results

        world(name, text, must)(lambda: patch.object(arithmetic, "_results", wrong))
        return change

    return add


@_results(
    "all-reduce-is-input", "gives every rank its own input", "collective.exact", Kind.ALL_REDUCE
)
def _(call, sources, results):
    return list(sources)


@_results(
    "reduce-scatter-wrong-shard",
    "gives every rank the next rank's part",
    "collective.exact",
    Kind.REDUCE_SCATTER,
)
def _(call, sources, results):
    return [*results[1:], results[0]]


@_results(
    "broadcast-from-0",
    "broadcasts from rank 0, whatever the root",
    "collective.exact",
    Kind.BROADCAST,
)
def _(call, sources, results):
    return [sources[0] or bytes(len(r)) for r in results]


@_results(
    "gather-reversed",
    "gathers from the last rank to the first",
    "collective.exact",
    Kind.ALL_GATHER,
    Kind.GATHER,
)
def _(call, sources, results):
    return [b"".join(reversed(sources))] * len(sources)


@_results("all-to-all-keeps", "gives every rank its own parts", "collective.exact", Kind.ALL_TO_ALL)
def _(call, sources, results):
    return list(sources)


@_results(
    "collective-drops-tail",
    "leaves out the last element of more than 64",
    "collective.exact",
    *FOLDS,
    Kind.BROADCAST,
    when=lambda call: call.count > 64,
)
def _(call, sources, results):
    size = call.dtype.nbytes
    return [r[:-size] + bytes(size) for r in results]


@world(
    "average-divides-twice", "divides an average twice by the number of ranks", "collective.exact"
)
def _():
    real = arithmetic._divide
    return patch.object(arithmetic, "_divide", lambda total, count: real(real(total, count), count))


@world("average-of-integers-floors", "rounds averages of integers down", "collective.exact")
def _():
    def floor(total, count):
        number = total.dtype.type(count)
        return total / number if total.dtype.kind == "f" else total // number

    return patch.object(arithmetic, "_divide", floor)


@world("maximum-ignores-nan", "leaves NaN out of a maximum", "collective.exact")
def _():
    return patch.object(
        arithmetic, "_FOLD", {**arithmetic._FOLD, ReduceKind.MAX: np.fmax, ReduceKind.MIN: np.fmin}
    )


@world(
    "narrow-accumulates-narrow",
    "adds float16 and bfloat16 in their own type",
    "collective.accumulate",
)
def _():
    return patch.object(arithmetic, "_WIDE", arithmetic._NUMPY)


@world(
    "in-place-reads-late",
    "clears the destination before it reads the source",
    "collective.in_place",
)
def _():
    real = communicator.combine

    def combine(call, ends, *more):
        if call.kind is not Kind.BARRIER:
            for end in ends.values():
                if end.dst == end.src:
                    end.write(bytes(end.dst.nbytes), lambda: None)
        real(call, ends, *more)

    return patch.object(communicator, "combine", combine)


@world(
    "sum-in-any-order",
    "adds the ranks of a float32 sum in another order every second time",
    "collective.deterministic",
)
def _():
    real, turn = arithmetic._reduce, itertools.count()

    def reduce(call, sources):
        return real(call, [*sources[1:], sources[0]] if next(turn) % 2 else sources)

    return patch.object(arithmetic, "_reduce", reduce)


@world("takes-any-size", "takes regions of any size for a collective", "collective.refused")
def _():
    return patch.object(groups, "check_fits", lambda *args: None)


@world(
    "first-call-wins",
    "does what the first rank asked for when the others ask for something else",
    "collective.mismatch",
)
def _():
    real = communicator.Communicator.join

    def join(self, member, call):
        return real(self, member, call)[0], ""

    return patch.object(communicator.Communicator, "join", join)


@world(
    "mismatch-fails-one", "fails a mismatch on the member alone that sees it", "collective.mismatch"
)
def _():
    def disagree(self, number, text):
        member = max(self.members.values(), key=lambda m: len(m.calls) * 100 + m.next_call)
        failure = communicator._peer_lost(member, text)
        member.fail(failure, number)

    return patch.object(communicator.Communicator, "disagree", disagree)


@world("missing-is-nameless", "does not say which rank did not come", "collective.missing")
def _():
    real = communicator._peer_lost
    return patch.object(
        communicator, "_peer_lost", lambda member, text: real(member, "a member is missing")
    )


@world(
    "missing-is-the-operation",
    "gives a missing member the scope of the operation",
    "collective.missing",
)
def _():
    real = communicator._peer_lost
    return patch.object(
        communicator,
        "_peer_lost",
        lambda member, text: replace(real(member, text), scope=Scope.OPERATION),
    )


@world(
    "waits-for-the-missing", "waits for ever for a member that does not come", "collective.missing"
)
def _():
    return patch.object(communicator.SharedCall, "expire", lambda self, op, waited_s: None)


@world("join-does-not-name", "does not say which rank did not join", "group.missing")
def _():
    return patch.object(
        rendezvous, "_missing", lambda communicator, spec: DeadlineExceeded("someone did not join")
    )


@world("join-leaves-its-chair", "keeps a member that gave up joining", "group.missing")
def _():
    return patch.object(communicator.Communicator, "withdraw", lambda self, member: None)


@world("any-peers", "lets members join that name other peers", "group.disagree")
def _():
    real = rendezvous._enter

    def enter(communicator, member):
        member.spec = replace(member.spec, peers=communicator.peers)
        real(communicator, member)

    return patch.object(rendezvous, "_enter", enter)


@mutant("abort-does-nothing", "leaves those waiting whose group is aborted", "abort.wakes")
def _(device):
    def abort(group, cause):
        group.native.error = group.native.error or cause

    hook(device, abort)


@mutant("abort-reworded", "fails a group's calls with its own words", "abort.wakes")
def _(device):
    real = device.abort

    def abort(group, cause):
        real(group, replace(cause, message="the group was aborted"))

    hook(device, abort)


@mutant("abort-once", "raises at a second abort", "abort.wakes")
def _(device):
    real = device.abort

    def abort(group, cause):
        if group.native.error is not None:
            raise InvalidCall("the group is aborted already")
        real(group, cause)

    hook(device, abort)


@mutant("last-error-kept", "replaces a group's error by a later one", "async_error.first")
def _(device):
    real = device.abort

    def abort(group, cause):
        real(group, cause)
        with LOCK:
            group.native.error = cause

    hook(device, abort)


@mutant("no-async-error", "never tells of a group's error", "async_error.first")
def _(device):
    def async_error(group):
        return None

    hook(device, async_error)


@mutant("shrinks-whole-groups", "shrinks only groups that have not failed", "shrink.works")
def _(device):
    real = device.shrink

    def shrink(group, ranks):
        if group.native.error is not None:
            raise InvalidCall("the group has failed")
        return real(group, ranks)

    hook(device, shrink)


@world("shrinks-in-reverse", "numbers the survivors from the last to the first", "shrink.works")
def _():
    real = checks.shrunk
    return patch.object(groups, "shrunk", lambda at, spec, ranks: real(at, spec, ranks[::-1]))
