"""`torch.hal`: what torch and programs ask of the device beside tensors."""

# The rest of the stack is imported at the first use, not by `import torch`.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from hal.core.facts import dataclass
from stack.bridge.torch.names import NAME, index_of, used

if TYPE_CHECKING:
    from stack.memory.pool import PoolStats


@dataclass(frozen=True, slots=True)
class Properties:
    """What a device is: its name in the stack, and the bytes of its memory."""

    name: str
    total_memory: int


class Stream(torch.Stream):
    """The one order in which a device does what is recorded for it: to wait for it inside of itself
    is to do nothing."""

    def __new__(cls, device: Any = None, priority: int = 0) -> Stream:
        made: Stream = super().__new__(cls, device=torch.device(NAME, index_of(device)))
        return made

    def synchronize(self) -> None:
        """Compute what is recorded, and wait for it."""
        torch.hal.synchronize(self.device_index)

    def query(self) -> bool:
        """True, after a wait: what is recorded is computed when it is asked for."""
        self.synchronize()
        return True

    def wait_stream(self, stream: torch.Stream) -> None:
        """Go on after what is recorded in another device's order."""
        if stream.device_index != self.device_index:
            stream.synchronize()

    def wait_event(self, event: torch.Event) -> None:
        """Go on after the event, which is behind unless it is another device's."""
        event.synchronize()

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """An event here."""
        made = Event(self.device) if event is None else event
        made.record(self)
        return made


class Event(torch.Event):
    """A place in a device's order. One with `enable_timing` waits for it when it is recorded, and
    tells the time of the host then: that is what `elapsed_time` measures."""

    def __new__(cls, device: Any = None, *, enable_timing: bool = False, **options: Any) -> Event:
        where = torch.device(NAME, index_of(device))
        made: Event = super().__new__(cls, device=where, enable_timing=enable_timing)
        made._index, made._timed, made._at_s = where.index, enable_timing, None
        return made

    _index: int
    _timed: bool
    _at_s: float | None

    def record(self, stream: torch.Stream | None = None) -> None:
        """Be behind what is recorded so far."""
        if stream is not None:
            self._index = stream.device_index
        if self._timed:
            self.synchronize()
        self._at_s = time.perf_counter()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let a stream go on behind this."""
        if stream is None or stream.device_index != self._index:
            self.synchronize()

    def query(self) -> bool:
        """True, after a wait where anything was recorded."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Compute what was recorded before, and wait for it."""
        torch.hal.synchronize(self._index)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """The milliseconds from this event to a later one. Raises RuntimeError for events that are
        not timed, or not recorded."""
        other = end_event
        if not isinstance(other, Event) or not (self._timed and other._timed):
            raise RuntimeError("elapsed_time: both events need enable_timing=True")
        if self._at_s is None or other._at_s is None:
            raise RuntimeError("elapsed_time: both events must be recorded first")
        return (other._at_s - self._at_s) * 1000


class Module:
    """`torch.hal`."""

    Stream, Event = Stream, Event

    def __init__(self) -> None:
        self._current = 0
        self._streams: dict[int, Stream] = {}

    def is_initialized(self) -> bool:
        return True

    def init(self) -> None:
        """Nothing: a device is opened at its first use."""

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return self._current

    def set_device(self, device: Any) -> None:
        """New tensors without an index are there."""
        self._current = index_of(device)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """A block in which new tensors without an index are there."""
        before, self._current = self._current, index_of(device)
        try:
            yield
        finally:
            self._current = before

    def device_count(self) -> int:
        """How many devices HAL_DEVICES names; one without it."""
        given = os.environ.get("HAL_DEVICES", "")
        return len([n for n in given.split(",") if n.strip()]) or 1

    def get_device_name(self, device: Any = None) -> str:
        """The device's name in the stack, "cpu:0"."""
        from stack.bridge.torch import kernels

        return kernels.names()[index_of(device)]

    def get_device_properties(self, device: Any = None) -> Properties:
        """Name and memory of the device."""
        name = self.get_device_name(device)
        return Properties(name, self.mem_get_info(device)[1])

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        return True

    def synchronize(self, device: Any = None) -> None:
        """Compute what is recorded, and wait for it."""
        if not used:  # also profilers of other devices call this
            return
        from stack.bridge.torch import kernels

        kernels.synchronize(index_of(device))

    def current_stream(self, device: Any = None) -> torch.Stream:
        """The order of a device, of which there is one."""
        index = index_of(device)
        if index not in self._streams:
            self._streams[index] = Stream(index)
        return self._streams[index]

    default_stream = current_stream

    def stream(self, stream: torch.Stream | None) -> AbstractContextManager[None]:
        """A block whose work is in the device's one order, as outside of it."""
        return nullcontext()

    # Random numbers

    def manual_seed(self, seed: int) -> None:
        """Begin the seed's stream of random numbers on the current device."""
        self.manual_seed_all(seed)

    def manual_seed_all(self, seed: int) -> None:
        """The same on all devices."""
        from stack.bridge.torch import seeds

        seeds.manual_seed(seed)

    def initial_seed(self) -> int:
        """The seed of the stream."""
        from stack.bridge.torch import seeds

        return seeds.given[0]

    def seed(self) -> int:
        """Begin the stream of a seed that nobody knows, and tell it."""
        self.manual_seed_all(torch.seed() % 2**63)
        return self.initial_seed()

    seed_all = seed

    def get_rng_state(self, device: Any = NAME) -> torch.Tensor:
        """The key and the offset of the device's stream, uint8[16]."""
        from stack.bridge.torch import draws

        return draws.get_state(index_of(device))

    def set_rng_state(self, state: torch.Tensor, device: Any = NAME) -> None:
        """Go on where `get_rng_state` was."""
        from stack.bridge.torch import draws

        draws.set_state(index_of(device), state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Those of all devices."""
        return [self.get_rng_state(i) for i in range(self.device_count())]

    def set_rng_state_all(self, states: Sequence[torch.Tensor]) -> None:
        """Go on where `get_rng_state_all` was."""
        for i, state in enumerate(states):
            self.set_rng_state(state, i)

    # Memory

    def empty_cache(self) -> None:
        """Give memory that nothing is in back to the devices."""
        if not used:
            return
        from stack.bridge.torch import kernels

        kernels.trim()

    def memory_allocated(self, device: Any = None) -> int:
        """The bytes in use."""
        return self._pool(device).allocated_nbytes

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes that were in use since `reset_peak_memory_stats`."""
        return self._pool(device).peak_nbytes

    def memory_reserved(self, device: Any = None) -> int:
        """The bytes that the pool has from the device."""
        return self._pool(device).reserved_nbytes

    def max_memory_reserved(self, device: Any = None) -> int:
        """The most bytes that it had since `reset_peak_memory_stats`."""
        return self._pool(device).peak_reserved_nbytes

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Count the peaks from now on."""
        from stack.bridge.torch import kernels

        kernels.reset_peak(index_of(device))

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """The bytes of the device's memory that are free, and all of them."""
        from stack.bridge.torch import kernels

        return kernels.memory_info(index_of(device))

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        """The figures of the pool by the names that torch has for them."""
        found = self._pool(device)
        return {
            "allocated_bytes.all.current": found.allocated_nbytes,
            "allocated_bytes.all.peak": found.peak_nbytes,
            "reserved_bytes.all.current": found.reserved_nbytes,
            "reserved_bytes.all.peak": found.peak_reserved_nbytes,
            "num_device_alloc": found.raw_allocations,
        }

    def _pool(self, device: Any) -> PoolStats:
        from stack.bridge.torch import kernels

        return kernels.memory(index_of(device))
