"""A training whose ranks may die: it goes on from the newest state that anybody has."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from math import isfinite
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np

from hal.core.errors import DeadlineExceeded, DeviceLost, HalError, InvalidCall
from stack.comm.engine.failures import CallMismatch, LateRank, PeerLost, SilentRank
from stack.comm.group import Group
from stack.comm.store import Store
from stack.comm.world import LINE, PREFIX, World
from stack.fault.compare import COMPARE_EVERY, Comparison, Holder, compared, first_of
from stack.fault.generations import Generation, Generations, Memory, last_of
from stack.fault.hearing import Hearing
from stack.fault.parts import AXIS, Loss, Parts, Warmed, shares
from stack.fault.state import Array, State
from stack.framework import Tensor
from stack.framework.nn import Module
from stack.launch.line import AgentLine
from stack.launch.membership import Member
from stack.parallel import Mesh

GO_ON_S = 60.0
"""How long a rank whose group has failed waits for the launcher to say who goes on."""
MOST_BACKS = 3
"""So often ranks go back to the step at which they agreed last; who differs then is not a bit that
has flipped."""
STUCK_STEPS, STUCK_S = 10, 5.0
"""A rank that does not come to a call for so many times the median of the last steps, and for so
many seconds at least, is stuck."""
REACH_S = 2.0
"""Before a rank says that another one is silent it looks for so long whether it reaches the job's
store itself: of two that do not hear each other the one that is cut off comes too late."""
_STEPS = 16
"""Of which the median is taken, and which have to be done before."""
_LOOK_S = 0.05

_RAN, _ADOPTED, _ENDED = range(3)
"""Of a state that is compared: a rank did it; a newcomer has it from a process that has ended; such
a process did it."""
_OF_NO_USE = {LateRank: "stuck", SilentRank: "silent"}

Update = Callable[[], object]


class DifferentState(HalError):
    """Ranks hold different values where they should hold the same, and nobody knows whose are
    right."""

    next_step = "start the training again from a checkpoint of an earlier step"


class Training:
    """A model that the ranks of a job train together, each on some of the `parts` of every batch.

    `state` is all else that a rank holds: an optimizer, a schedule, a position in data, a random
    generator, by any names (see `stack.fault.state.State` for what can be declared). What is not
    declared is not brought back: keep out of `step` what must not be done twice. Processes that
    wait run a step as far as its captured function, to compile it.

        with fault.Training(model, parts=4, optimizer=optimizer, data=samples) as training:
            train = training.gradients(loss_of, update)
            training.each(step, until=500)

    Under `hal run --least 2 --spares 1` a rank that ends is replaced, or the others take its parts:
    `each` lets all ranks go on from the newest state that one of them has, and runs again what came
    after. In any other job, and alone, it is a loop. Raises CheckpointError for state that cannot
    be copied, InvalidCall for a job with more ranks than parts.
    """

    def __init__(self, model: Module, parts: int, **state: Any) -> None:
        devices = sorted({t.device for t in (*model.parameters(), *model.buffers())})
        if len(devices) != 1:
            raise InvalidCall(f"a training takes a model on one device, not {devices}")
        self._world = World.present()
        self._state = State({"model": model, **state})
        self._parts = Parts(model, parts, devices[0])
        self._device = devices[0]
        self._kind = zlib.crc32(self._device.partition(":")[0].encode())
        self._part_s: deque[float] = deque(maxlen=_STEPS)
        self._kept = Generations()
        self._told: tuple[int, ...] = ()
        self._epochs: deque[dict[str, Any]] = deque()
        self._struck: deque[dict[str, Any]] = deque()
        self._line: AgentLine | None = None
        self._hearing: Hearing | None = None
        self._met_as: tuple[Sequence[str], Group] | None = None
        """The group that calls are made in, and its members."""
        self._is_fresh = self._is_live = True
        self._is_warm = self._has_left = False
        self._members: list[str] = []
        self._has_adopted = False
        self._gives = False
        self._copying: tuple[int, int] | None = None
        """The epoch and step that another host is to get a copy of, and has not yet."""
        self._lasted_s: deque[float] = deque(maxlen=_STEPS)
        self._disputed: Comparison | None = None
        self._backs = 0
        self._restore_s = 0.0
        self._first_bad, self._backs = -1, 0
        self._diverges = False
        self._diverged: tuple[int, tuple[int, ...]] | None = None
        self.step, self.epoch, self.recoveries = 0, 0, 0
        """How many steps are done; the epoch; how often this rank went on in another one."""
        if self._world is not None:
            self._world.check_process()
            if self._world.size > parts and not self._world.member:
                raise InvalidCall(f"{self._world.size} ranks share {parts} parts; take more parts")
            if self._world.member:
                self._line = AgentLine.inherited(int(os.environ[PREFIX + LINE]))

    @property
    def rank(self) -> int:
        """Among the ranks of this epoch; 0 before the first."""
        return self._parts.rank

    @property
    def size(self) -> int:
        """The ranks of this epoch."""
        return self._parts.size

    def gradients(self, loss: Loss, update: Update) -> Callable[..., Tensor]:
        """A step of the model: the gradients of `loss(*part)`, their mean over all parts, then
        `update()`. It takes whole batches, equal on all ranks, and gives the mean loss. Both are
        captured, as under `jit`, for one part: another number of ranks compiles nothing."""
        return self._parts.gradients(loss, update)

    def averaged(self, function: Loss) -> Callable[..., Tensor]:
        """The mean of `function(*part)` over the parts of whole batches, captured."""
        return self._parts.averaged(function)

    def part(self, batch: Array) -> Array:
        """The batch: what this value captures takes whole ones, and cuts them itself."""
        return batch

    def gathered(self) -> AbstractContextManager[None]:
        """A block within which every rank has the whole model, as it has anyway."""
        return nullcontext()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on a rank; all ranks call it, and wait for each other."""
        return self._parts.any(flag)

    def each(self, step: Callable[[], object], until: int) -> bool:
        """Run `step` until it was done `until` times, counted by `step` of this value, which a
        script that goes on from a checkpoint sets before. A step that gives True, on all ranks
        alike, is the last one; gives whether there was one.

        Raises what a step raises that is no other rank's end, and that where the launcher says
        nothing of how to go on.
        """
        if self._has_left:
            raise InvalidCall(
                f"the ranks have come to the end of the training, after step {self.step}, and "
                "cannot be replaced any more; call `each` once, until the last step"
            )
        is_last: object = None
        self._arrive(step)
        while True:
            try:
                if self._newest_epoch() is not None:
                    self._enter(step)
                if self.step >= until or is_last is True:
                    # Nobody goes whose state another one may still need
                    if self._line is not None and self._parts.group is not None:
                        self._parts.group.barrier()
                        self._has_left = True
                        own = self._members[self.rank]
                        self._tell(say="left", member=own, ranks=self._members)
                    break
                while self._struck:
                    # A fault that was asked for happens to this rank
                    words = self._struck.popleft()
                    if words["kind"] == "slow":
                        self._parts.slowed = words["factor"]
                    else:
                        self._state.flip(words["number"])
                began_s = time.monotonic()
                self._parts.begin()
                is_last = step()
                self.step += 1
                if self._first_bad < 0 and not isfinite(self._parts.own_loss):
                    self._first_bad = self.step
                if self._line is not None:
                    self._keep()
                    self._expect(time.monotonic() - began_s)
                    due = self._disputed is not None and self._disputed.step == self.step
                    due = due or self.step % COMPARE_EVERY == 0 or self.step == until
                    if due or is_last is True:
                        is_last = self._compare() and is_last
            except DeviceLost as error:
                self._tell(say="device lost", why=str(error))
                raise
            except HalError as error:
                self._accuse(error)
                self._enter(step, error)
                is_last = None
        if self._world is not None and self._parts.group is not None:
            self._parts.group.deadline_s = self._world.deadline_s
        return is_last is True

    def close(self) -> None:
        """Leave the other ranks. Idempotent."""
        self._parts.leave()
        if self._hearing is not None:
            self._hearing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # epochs

    def _arrive(self, step: Callable[[], object]) -> None:
        """Take part in the job's first epoch, or in whichever comes."""
        self._keep()
        if self._line is None:
            mesh = Mesh.present()
            ranks = mesh.size(AXIS)
            self._join(mesh.join(AXIS) if ranks > 1 else None, mesh.rank, ranks)
            return
        assert self._world is not None
        if self._hearing is None:
            self._hearing = Hearing(self._line, self._leave_the_lost)
        if Member.of(self._world.member).start:
            self._warm(step)
        _reach(self._world, self._world.deadline_s)  # where no network leads, it is of no use
        self._line.say({"say": "arrived", "member": self._world.member}, (), GO_ON_S)
        self._enter(step)

    def _enter(self, step: Callable[[], object], error: HalError | None = None) -> None:
        """Go on in the newest epoch, of which this process is a member: wait for it where the group
        has failed by `error`, which is raised where it was not that, or no epoch comes."""
        if self._line is None:
            if error is not None:
                raise error
            return
        began_s = time.monotonic()
        if error is not None:
            group = self._parts.group
            failure = None if group is None else group.failure
            if self._newest_epoch() is None and (
                failure is None or isinstance(failure, CallMismatch)
            ):
                raise error
            self._is_live = False
        self._parts.leave()
        assert self._world is not None
        own = self._world.member
        while True:
            # The newest epoch with this process, once there is one. Who waits as a spare has as
            # long as the job.
            until_s = time.monotonic() + GO_ON_S
            while (words := self._newest_epoch()) is None:
                if error is not None and time.monotonic() > until_s:
                    raise error
                if error is None and self._epochs and not self._is_warm:
                    self._warm(step)
                self._hear(_LOOK_S)
            group = self._met(words)
            if group is None:
                continue
            self._met_as = [name for name, _ in words["members"]], group
            try:
                went_back = self._join(group, group.rank, group.size, words)
            except HalError as later:
                self._is_live = False
                self._parts.leave()
                if group.failure is None:
                    raise
                error = later
                continue
            self.epoch = words["number"]
            self.recoveries += 1
            said: dict[str, float] = {"epoch": self.epoch, "rank": self.rank, "step": self.step}
            self._gives = words["giver"] == own
            self._copy()
            took_s = round(time.monotonic() - began_s, 4)
            said["restore_s"] = round(self._restore_s, 4)
            self._tell(say="entered", member=own, **said, s=took_s, back=went_back)
            return

    def _left(self) -> tuple[dict[str, list[Memory]], list[Memory]]:
        """What processes that have ended have left with the agent of this host, and the copies
        that it has of another host's state."""
        assert self._line is not None
        assert self._hearing is not None
        self._line.say({"say": "held"}, (), GO_ON_S)
        while True:
            words, descriptors = self._hearing.wait(
                GO_ON_S, "the agent of this host did not answer"
            )
            if words["say"] == "held":
                break
            self._hear_words(words)
        left: dict[str, list[Memory]] = {}
        memories = [Memory(descriptor) for descriptor in descriptors]
        for descriptor in descriptors:
            os.close(descriptor)
        count = words["copies"]
        for member, memory in zip(words["members"][count:], memories[count:], strict=True):
            left.setdefault(member, []).append(memory)
        return left, memories[:count]

    def _newest_epoch(self) -> dict[str, Any] | None:
        """The newest epoch that this process was told of and is not in yet, if it is a member."""
        self._hear(0.0)
        if not self._epochs or self._world is None:
            return None
        words = self._epochs[-1]
        is_member = any(name == self._world.member for name, _ in words["members"])
        return words if is_member and words["number"] > self.epoch else None

    def _hear(self, deadline_s: float) -> None:
        if self._hearing is not None:
            while (said := self._hearing.next(deadline_s)) is not None:
                self._hear_words(said[0])

    def _leave_the_lost(self, words: dict[str, Any]) -> None:
        """In the thread that hears: a newer epoch lacks a member of the group, so that a call which
        waits for that one, whose host may be silent, need not wait until it is missed."""
        if words["say"] == "epoch" and self._met_as is not None:
            members, group = self._met_as
            if not set(members) <= {name for name, _ in words["members"]}:
                group.abort()

    def _hear_words(self, words: dict[str, Any]) -> None:
        if words["say"] == "epoch":
            self._epochs.append(words)
        elif words["say"] == "fault":
            self._struck.append(words)
        elif words["say"] == "copied" and (words["epoch"], words["step"]) == self._copying:
            self._copying = None

    def _met(self, words: dict[str, Any]) -> Group | None:
        """The group of an epoch; None where a newer one came before all had met."""
        assert self._world is not None
        members: Sequence[tuple[str, int]] = words["members"]
        rank = [name for name, _ in members].index(self._world.member)
        local = [i for i, (_, host) in enumerate(members) if host == members[rank][1]]
        world = replace(
            self._world,
            rank=rank,
            size=len(members),
            local_rank=local.index(rank),
            local_size=len(local),
            job=f"{self._world.job}/{words['number']}",
            epoch=words["number"],
        )
        meeting = _Meeting(Mesh.of(world))
        while not meeting.done(_LOOK_S):
            newer = self._newest_epoch()
            if newer is not None and newer["number"] > words["number"]:
                meeting.give_up()
                return None
        return meeting.group()

    def _join(
        self, group: Group | None, rank: int, size: int, epoch: dict[str, Any] | None = None
    ) -> bool:
        """Share the parts with a group, once all its ranks have the same state; whether they went
        back to that of an earlier step, because some held another one."""
        went_back, self._restore_s = False, 0.0
        self._disputed = self._diverged = None
        self._diverges, self._backs = False, 0
        if group is not None:
            try:
                if epoch is None:
                    self._agree(group, {}, [], False, 0)
                else:
                    self._members = [name for name, _ in epoch["members"]]
                    host = epoch["members"][rank][1]
                    is_first = host not in [where for _, where in epoch["members"][:rank]]
                    went_back = self._agree(group, *self._left(), is_first, epoch["number"])
            except BaseException:
                group.close()
                raise
        self._parts.join(group, rank, size)
        self._lasted_s.clear()
        self._part_s.clear()
        if self._first_bad > self.step:
            self._first_bad = -1
        return went_back

    # what is wrong

    def _expect(self, lasted_s: float) -> None:
        """A step was done: whoever does not come to a call for much longer is stuck."""
        group = self._parts.group
        self._lasted_s.append(lasted_s)
        if self._parts.own_s is not None:
            self._part_s.append(self._parts.own_s / len(self._parts.own))
        if group is None or self._world is None or len(self._lasted_s) < _STEPS:
            return
        stuck_s = max(STUCK_S, STUCK_STEPS * median(self._lasted_s))
        group.deadline_s = min(stuck_s, self._world.deadline_s)

    def _compare(self) -> bool:
        """Look whether all ranks hold the same, and let them where they do not; False where all go
        back to a step that was done before. Raises DifferentState where nobody knows what is
        right."""
        group, found = self._parts.group, self._kept.newest()
        if group is None or found is None:
            return True
        own = self._state.digests(found.tensors)
        part_ns = int(median(self._part_s) * 1e9) if self._part_s else -1
        tail = np.array([self._first_bad, self._kind, part_ns])
        said = group.all_gather(np.append(own, tail)).reshape(group.size, own.size + 3)
        held, (bad, kinds, parts_ns) = said[:, :-3], said[:, -3:].T
        lead = np.flatnonzero(kinds == _most_common(kinds.tolist())).tolist()
        holders = [Holder(self._members[rank], rank) for rank in lead]
        now = compared(self.step, self._state.names, holders, held[lead], self._disputed)
        self._name_wrong(group, now)
        is_finite = bool((bad < 0).all())
        if self._diverged is not None and self._diverged[0] == self.step:
            for rank in self._diverged[1] if is_finite and group.rank == now.teller else ():
                why = "its loss was the first that was not finite, and is when computed again"
                self._tell(say="wrong", member=self._members[rank], why=why)
            self._diverges = not is_finite  # the same comes of the same: it is the training's own
        is_finite = is_finite or self._diverges
        if now.is_equal and is_finite:
            self._disputed = self._diverged = None
            self._first_bad, self._backs = -1, 0
            # Where ranks are on several kinds of devices, whose roundings differ: let all hold
            # what the leading ones do, and have parts by how long they take for one.
            parts_ns = parts_ns.tolist()
            if len(lead) != group.size:
                self._spread(group, lead, self.step)
                if group.rank not in lead:
                    self._take()
                if min(parts_ns) > 0:
                    self._parts.own = shares(self._parts.count, parts_ns)[group.rank]
            self._kept.agree()
            return True
        if not is_finite:
            self._diverged = self.step, first_of(bad)
        if self._backs < MOST_BACKS and self._go_back(group, now, self.epoch):
            self._copy()
            return False
        if now.is_equal:
            return True
        self._follow(group, now)
        self._disputed, self._backs = None, 0
        self._kept.agree()
        return True

    def _name_wrong(self, group: Group, now: Comparison) -> None:
        for holder, why in now.wrong if group.rank == now.teller else ():
            self._tell(say="wrong", member=holder.member, why=why)

    def _go_back(self, group: Group, now: Comparison, epoch: int) -> bool:
        """Let all ranks go back to the newest step after which all held the same, because of what
        they hold `now`; False where nobody has that state, or ranks have it in different bits."""
        agreed = self._kept.agreed()
        own = np.full(len(self._state.names) + 1, -1, np.int64)
        if agreed is not None:
            own[:] = agreed.step, *self._state.digests(agreed.tensors)
        rows = group.all_gather(own).reshape(group.size, own.size)
        step = int(rows[:, 0].max())
        holders = np.flatnonzero(rows[:, 0] == step).tolist()
        if step < 0 or (rows[holders] != rows[holders[0]]).any():
            return False
        self._spread(group, holders, step)
        self._kept.enter(epoch, step)
        self._kept.agree()
        self._take()
        self._disputed = None if now.is_equal else now
        self._first_bad, self._backs = -1, self._backs + 1
        self._tell(say="forget")
        if group.rank == now.teller:
            self._tell(say="back", step=self.step, why=now.why)
        return True

    def _follow(self, group: Group, now: Comparison) -> None:
        """Let all ranks hold what the majority holds. Raises DifferentState without one."""
        right = [] if now.majority is None else [now.holders[row].rank for row in now.majority]
        ranks = [rank for rank in right if rank is not None]
        if not ranks:
            raise DifferentState(now.why)
        self._spread(group, ranks, now.step)
        if group.rank not in ranks:
            self._take()

    # state

    def _keep(self) -> None:
        """Copy the state, which is that after `step` steps, into memory that outlives this
        process."""
        self._state.look()
        self._state.compute()
        # Wait until another host has the state after the step before, or a newer epoch comes.
        until_s = time.monotonic() + GO_ON_S
        while self._copying is not None and self._newest_epoch() is None:
            if time.monotonic() > until_s:
                raise DeadlineExceeded(f"the agent of this host copied nothing in {GO_ON_S:g} s")
            self._hear(_LOOK_S)
        began_s = time.monotonic()
        plain = self._state.plain()
        room = self._kept.begin(self._state.layout, plain, self._state.nbytes, self._kind)
        self._state.read(room)
        self._kept.end(self.step)
        self._is_live = True
        # Say how far this rank is, and how long it took to copy its state.
        save_s = time.monotonic() - began_s
        self._give()
        if self._line is not None:
            own_s, parts = self._parts.own_s, len(self._parts.own)
            saved = {"save_s": round(save_s, 6)}
            self._tell(say="step", step=self.step, own_s=own_s, parts=parts, **saved)
        self._copy()

    def _copy(self) -> None:
        """Let the agents copy the newest state to another host, beside the next step: that one is
        done only once this one is there."""
        self._give()
        self._copying = self._kept.order if self._gives else None
        if self._gives:
            self._tell(say="copy")

    def _give(self) -> None:
        """Give the agent of this host what it has not been given."""
        if self._line is not None and self._told != self._kept.descriptors:
            self._told = self._kept.descriptors
            self._line.say({"say": "generations"}, self._told, GO_ON_S)

    def _tell(self, **words: Any) -> None:
        if self._line is not None:
            self._line.say(words, (), GO_ON_S)

    def _agree(
        self,
        group: Group,
        left: Mapping[str, list[Memory]],
        copies: Sequence[Memory],
        is_first: bool,
        epoch: int,
    ) -> bool:
        """Let all ranks of an epoch begin with the same state: that after the newest step which all
        have that were ranks last, also those that have ended, as far as what they `left` is on
        these hosts. The first rank of a host tells of it. Whoever was wrong may be gone, but not
        what it held; and what is newer may come from its gradients. Where they differ all go back
        to the step at which all agreed; gives whether it is so.

        Where nobody of the last epoch is left, and no host of theirs, the newest of the `copies`
        counts that other hosts have. Before the first epoch the newest step counts, and what has
        run nowhere least: of several such the one of the lowest rank is that of all.
        """
        self._state.look()
        if self._kept.adopt(list(left.values())):
            self._is_fresh, self._is_live, self._has_adopted = False, False, True
        told = left if is_first else {}
        agreed = self._kept.agreed()
        head = [*self._kept.order, not self._is_fresh, self._state.layout, *last_of(told.values())]
        head += [len(told), -1 if agreed is None else agreed.step]
        copy = max(copies, key=lambda memory: memory.order, default=None)
        head += (-1, -1) if copy is None else copy.order
        heads = group.all_gather(np.array(head, np.int64)).reshape(group.size, len(head))
        epochs, steps, ran, layouts, left_epochs, left_steps, counts, all_agreed = heads[:, :8].T
        if len(set(layouts.tolist())) > 1:
            other = next(r for r, n in enumerate(layouts) if n != layouts[0])
            raise InvalidCall(
                f"ranks 0 and {other} declare other state: tensors of other names, types or shapes;"
                " run the same script with the same arguments on all ranks"
            )
        last = max(int(epochs.max()), int(left_epochs.max()))
        newest_copy = max((int(e), int(s)) for e, s in heads[:, 8:])
        if newest_copy[0] > max(last, 0):
            last, has = newest_copy[0], (heads[:, 8:] == newest_copy).all(axis=1)
            epochs, steps = np.where(has, last, epochs), np.where(has, newest_copy[1], steps)
            if copy is not None and has[group.rank]:
                self._kept.adopt([[copy]])
                self._is_fresh, self._is_live, self._has_adopted = False, False, True
        if last <= 0:
            best = max(zip(steps.tolist(), ran.tolist(), strict=True))
            newest = int(best[0])
            holders = [r for r in range(group.size) if (steps[r], ran[r]) == best]
            holders = holders if best[1] else holders[:1]
        else:
            newest = int(min([*steps[epochs == last], *left_steps[left_epochs == last]]))
            holders, now = self._compare_left(group, told, (last, newest), int(counts.max()))
            if not now.is_equal:
                self._name_wrong(group, now)
                self._kept.adopt_agreed(memory for own in left.values() for memory in own)
                if self._go_back(group, now, epoch):
                    self._is_fresh = self._has_adopted = False
                    return True
                self._follow(group, now)
                holders = list(range(group.size))
        takes = self._kept.step != newest or not self._is_live or group.rank not in holders
        self._spread(group, holders, newest)
        self._kept.enter(epoch, newest)
        if takes:
            self._take()
        if all_agreed.max() < 0:
            self._kept.agree()
        self._is_fresh = self._has_adopted = False
        return False

    def _compare_left(
        self, group: Group, left: Mapping[str, list[Memory]], at: tuple[int, int], most: int
    ) -> tuple[list[int], Comparison]:
        """The ranks that have the state of this epoch and step; and a comparison of what those hold
        that were ranks then, also of what others have `left`, `most` of them on a host."""
        found: list[tuple[str, int, Generation | None]] = []
        if self._kept.order[0] == at[0]:
            found.append((self._members[group.rank], self._has_adopted, self._kept.at(at[1])))
        for member, memories in left.items():
            memory = next((memory for memory in memories if memory.order == at), None)
            found.append((member, _ENDED, None if memory is None else memory.whole()))
        rows = np.full((most + 1, 4 + len(self._state.names)), -1, np.int64)
        for row, (name, role, kept) in zip(rows, found, strict=False):
            if kept is not None and kept.layout == self._state.layout:
                own = Member.of(name)
                sums = self._state.digests(kept.tensors)
                row[:] = role, own.seat, own.start, kept.kind, *sums
        all_rows = group.all_gather(rows).reshape(group.size, most + 1, -1)
        roles, kinds = all_rows[:, :, 0], all_rows[:, :, 3]
        alive = (roles == _RAN) | (roles == _ADOPTED)
        if not alive.any():
            raise DifferentState(f"no rank has the state after step {at[1]}, up to which all came")
        # Other kinds of devices have other roundings
        leads = kinds == _most_common(kinds[alive].tolist())
        ranks = np.flatnonzero((alive & leads).any(axis=1)).tolist()
        ran = roles == (_RAN if (roles == _RAN).any() else _ADOPTED)
        rows_of = leads & (ran | (roles == _ENDED))
        held = []
        for r, i in np.argwhere(rows_of).tolist():
            role, seat, start = all_rows[r, i, :3].tolist()
            held.append(Holder(str(Member(seat, start)), None if role == _ENDED else r))
        sums = all_rows[rows_of][:, 4:]
        return ranks, compared(at[1], self._state.names, held, sums)

    def _spread(self, group: Group, holders: Sequence[int], step: int) -> None:
        """Give the state after so many steps, which these ranks have, to the others."""
        if len(holders) == group.size:
            return
        began_s = time.monotonic()
        root, takes = holders[0], group.rank not in holders
        found = self._kept.at(step) if group.rank == root else None
        of_found = [0, 0] if found is None else [len(found.plain), found.kind]
        head = np.array(of_found, np.int64)
        group.broadcast(head, root)
        plain = np.zeros(int(head[0]), np.uint8)
        if found is not None:
            plain[:] = np.frombuffer(found.plain, np.uint8)
        group.broadcast(plain, root)
        room: Array = np.empty(self._state.nbytes, np.uint8)
        if takes:
            given = (self._state.layout, plain.tobytes(), self._state.nbytes, int(head[1]))
            room = self._kept.begin(*given)
        group.broadcast(room if found is None else found.tensors, root)
        if takes:
            self._kept.end(step)
            self._is_live = False
            self._give()
        self._restore_s += time.monotonic() - began_s

    def _take(self) -> None:
        """Make the newest kept state that of this process. Raises InvalidCall for that of another
        training."""
        found = self._kept.newest()
        assert found is not None, "a rank keeps its state before it meets others"
        self._state.look()
        if found.layout != self._state.layout:
            raise InvalidCall(
                f"the state that was kept on this host is of another training, with "
                f"{found.tensors.size} bytes of tensors beside {self._state.nbytes} of this one: "
                "their names, types or shapes differ; run that one, or keep this one in another "
                "folder"
            )
        began_s = time.monotonic()
        self._state.take(found.tensors, found.plain)
        self._restore_s += time.monotonic() - began_s
        self.step, self._is_live = found.step, True

    def _warm(self, step: Callable[[], object]) -> None:
        """Run a step alone as far as its captured function, so that all is compiled before this
        process is a rank, and take it back. It is of one part, and this process counts as a rank
        that shows nothing."""
        assert self._world is not None
        self._is_warm = True
        job = f"{self._world.job}/{self._world.member}"
        world = replace(self._world, rank=0, size=1, local_rank=0, local_size=1, job=job, epoch=1)
        self._parts.join(Mesh.of(world).join(AXIS), 1, 1, range(1))
        self._parts.warming = True
        with suppress(Warmed):
            step()
        self._parts.warming = False
        self._parts.leave()
        self._take()

    def _accuse(self, error: HalError) -> None:
        """Tell the launcher of a rank that has a process and is of no use: it is silent, or does
        not come to its calls."""
        group = self._parts.group
        failure = None if group is None else group.failure
        kind = next((kind for error, kind in _OF_NO_USE.items() if isinstance(failure, error)), "")
        if kind and isinstance(failure, PeerLost):
            name = self._members[failure.rank]
            if self._world is not None and name != self._world.member:
                if kind == "silent":
                    with suppress(HalError):
                        _reach(self._world, REACH_S)
                self._tell(say="faulty", member=name, kind=kind, why=str(failure))


def _reach(world: World, seconds: float) -> None:
    """Ask the job's store for anything. Raises DeadlineExceeded when it does not answer in time."""
    with closing(Store.of(world)) as store:
        store.usage(seconds)


def _most_common(kinds: Sequence[int]) -> int:
    """Of equally common ones the first."""
    return Counter(kinds).most_common(1)[0][0]


class _Meeting:
    """The meeting of a group, in a thread: it can be given up."""

    def __init__(self, mesh: Mesh) -> None:
        self._lock = threading.Lock()
        self._group: Group | None = None
        self._error: BaseException | None = None
        self._is_given_up = False
        self._thread = threading.Thread(
            target=self._meet, args=(mesh,), name="hal-meeting", daemon=True
        )
        self._thread.start()

    def done(self, deadline_s: float) -> bool:
        """Whether it ends within that time."""
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def group(self) -> Group:
        """Raises what the meeting has raised."""
        if self._error is not None:
            raise self._error
        assert self._group is not None, "a meeting that has ended has a group or an error"
        return self._group

    def give_up(self) -> None:
        """Close what comes of it."""
        with self._lock:
            self._is_given_up = True
            group, self._group = self._group, None
        if group is not None:
            group.close()

    def _meet(self, mesh: Mesh) -> None:
        try:
            group = mesh.join(AXIS)
        except BaseException as error:  # noqa: BLE001  raised by `group`
            self._error = error
            return
        with self._lock:
            if not self._is_given_up:
                self._group = group
                return
        group.close()
