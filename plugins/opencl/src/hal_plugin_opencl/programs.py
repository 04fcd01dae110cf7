"""From OpenCL C text to kernels that are ready to run."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from threading import Lock
from typing import Any

import pyopencl as cl
from pyopencl import invoker

# The class below `pyopencl.Program`, which has neither a cache of its own nor options of its own.
from pyopencl._cl import _Program

from hal.cache import Cache
from hal.core.dtypes import DType
from hal.core.errors import CompileError, InvalidCall
from hal.core.values import KernelSource, Param, ParamKind
from hal.hosted.driven import DriverMemory
from hal.hosted.kept import KeptBuilds
from hal.hosted.machine import Part
from hal.hosted.places import Place
from hal.hosted.texts import checked, error_line, whole_options
from hal.tile.numeric import constant, quiet
from hal_plugin_opencl import beside, joined
from hal_plugin_opencl.beside import Beside, Text
from hal_plugin_opencl.describe import has_double, rounds_correctly

CALL = "hal_launch"
"""The kernel that a build adds to the text: it calls the entry when its last argument is not 0.
Run with 0 it makes drivers that generate code at the first launch do so during the load. An entry
of work-groups of one has that argument itself."""

_TYPES = {
    DType.F64: "double",
    DType.F32: "float",
    DType.I64: "long",
    DType.I32: "int",
    DType.I16: "short",
    DType.I8: "char",
    DType.U64: "ulong",
    DType.U32: "uint",
    DType.U16: "ushort",
    DType.U8: "uchar",
    DType.BOOL: "uchar",
} | {d: {8: "uchar", 16: "ushort"}[d.bits] for d in DType if d.is_narrow}
"""Of arguments: a narrow float is its bits."""
_NBYTES = {"double": 8, "float": 4, "long": 8, "int": 4, "short": 2, "char": 1}
_NBYTES |= {f"u{kind}": nbytes for kind, nbytes in _NBYTES.items()}
"""Of arguments that are numbers."""
_BYTES = "uchar*"
BUILD = "5"
"""Part of every key in the cache; changes when the way of building changes."""
_LONGEST = 100
"""The longest name of an entry that drivers are given."""


ADDRESS, _OFFSET = struct.Struct("P"), struct.Struct("=Q")
_NOWHERE = Part(DriverMemory(None, ADDRESS.pack(0)), 0, 0)
"""No memory, as the argument of a run of nothing."""


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    """pyopencl's maker of the functions by which users call a kernel, asked once for the same
    arguments but the devices. It unpickles and runs their text for each object, and a graph has one
    for each of its launches."""
    made: dict[tuple[Any, ...], Any] = {}

    def known(*arguments: Any, **more: Any) -> Any:
        key = (*arguments, *((k, x) for k, x in sorted(more.items()) if k != "devs"))
        try:
            found = made.get(key)
        except TypeError:  # an argument that cannot be compared, in some other version
            return make(*arguments, **more)
        if found is None:
            if len(made) >= _MOST:
                made.clear()
            found = made[key] = make(*arguments, **more)
        return found

    return known


_MOST = 1000
"""How many kinds of kernels are remembered."""
_MOST_GROUPS = 32
"""How many groups of programs are held that not all of their sources were loaded of."""

_MAKER = "generate_enqueue_and_set_args"
if hasattr(invoker, _MAKER):  # which is not one of the names that pyopencl documents
    setattr(invoker, _MAKER, _once(getattr(invoker, _MAKER)))


@dataclass(eq=False, slots=True)
class Loaded:
    """The kernel `name` of an entry, with the arguments of `params` (and a last one if `guarded`),
    to be launched in work-groups of `lanes`. The first launch of a grid of each kind may compile:
    `started` has those that were launched. `spare` are kernels that no launchable has: to make one
    takes PoCL 0.15 ms."""

    entry: str
    program: _Program
    name: str
    params: tuple[Param, ...]
    lanes: int
    guarded: bool
    numbers: tuple[int, ...]
    started: set[bool] = field(default_factory=set)
    spare: list[Any] = field(default_factory=list)

    def kernel(self) -> Any:
        """A kernel with arguments of its own."""
        try:
            return self.spare.pop()
        except IndexError:
            return _kernel(self.program, self.name)

    def idle(self) -> Bound:
        """A run of nothing, which makes a driver generate the code."""
        bound = Bound(self)
        for index, param in enumerate(self.params):
            bound.put(index, 0 if param.kind is ParamKind.SCALAR else _NOWHERE)
        bound.kernel._set_arg_buf(self.numbers[-1], b"\0")
        return bound


class Bound:
    """A kernel with its arguments. It goes back to its program in the end, since a launch that was
    started has its own copy of the arguments."""

    __slots__ = ("kernel", "lanes", "loaded", "local")

    def __init__(self, loaded: Loaded) -> None:
        self.loaded, self.lanes = loaded, loaded.lanes
        self.local = (loaded.lanes, 1, 1)
        self.kernel = loaded.kernel()
        if loaded.guarded:
            self.kernel._set_arg_buf(loaded.numbers[-1], b"\1")

    def __del__(self) -> None:
        if hasattr(self, "kernel"):
            self.loaded.spare.append(self.kernel)

    def put(self, index: int, arg: Part | float) -> None:
        """Set the kernel arguments of a parameter."""
        number, kernel = self.loaded.numbers[index], self.kernel
        if isinstance(arg, Part):
            kernel._set_arg_buf(number, arg.memory.handle)
            kernel._set_arg_buf(number + 1, _OFFSET.pack(arg.offset))
            return
        with quiet():
            kernel._set_arg_buf(number, constant(arg, self.loaded.params[index].dtype).tobytes())


@dataclass(eq=False, slots=True)
class _Group:
    """Programs that are built together, until each of the `awaited` sources was loaded; None:
    they do not build so."""

    awaited: set[KernelSource]
    lock: Lock = field(default_factory=Lock)
    is_tried: bool = False
    program: _Program | None = None
    is_new: bool = False
    """Built now: another process may be at its kernels' code."""


class Programs:
    """Loads the programs of a context, from the cache where they are in it."""

    def __init__(
        self,
        context: cl.Context,
        device: cl.Device,
        fingerprint: str,
        cache_dir: str,
        place: Place | None = None,
    ) -> None:
        """With the device's `place` some are built by a second process, where that helps."""
        self._context, self._device = context, device
        is_shared = place is not None and beside.shares(device)
        self._beside = Beside(place) if place is not None and is_shared else None
        self._turn = Lock()
        cache = Cache(cache_dir, "opencl")
        self._kept = KeptBuilds[_Program](cache, _binary, BUILD, cl.VERSION_TEXT, fingerprint)

        self._groups: dict[tuple[KernelSource, ...], _Group] = {}
        self._lock = Lock()

    def load(self, source: KernelSource) -> Loaded:
        """Build a source in opencl-c/1 and check its entry. Raises CompileError, InvalidCall."""
        others, source = source.beside, replace(source, beside=())
        lanes = _lanes(source)
        wide = [p.name for p in source.params if p.dtype is DType.F64]
        if wide and not has_double(self._device):
            raise CompileError(f"{source.entry}: {self._device.name} has no f64, which {wide} are")
        loaded = self._kept_program(source, lanes) or self._joined(source, others, lanes)
        if loaded is None:
            program = self._called(source) if not lanes else None
            if program is None:
                text = _written(source, lanes) if lanes else source.text + _call(source)
                program = _build(self._context, self._device, source, text)
                _check_arguments(program, source, lanes)
            loaded = _loaded(program, source, lanes, self._device)
            self._kept.note(source, program, len(source.text))
        return loaded

    def _joined(
        self, source: KernelSource, others: tuple[KernelSource, ...], lanes: int
    ) -> Loaded | None:
        """The program that is built together with those beside it; None where it is not."""
        sources = next((g for g in joined.groups(others) if source in g), (source,))
        if len(sources) == 1:
            return None
        with self._lock:
            group = self._groups.setdefault(sources, _Group(set(sources)))
            if len(self._groups) > _MOST_GROUPS:  # whose programs were found otherwise
                self._groups.pop(next(iter(self._groups)))
        with group.lock:
            if not group.is_tried:
                group.is_tried = True
                with suppress(CompileError, InvalidCall):  # which is said of a program alone
                    group.program, group.is_new = self._together(sources, others)
            group.awaited.discard(source)
            if not group.awaited:
                with self._lock:
                    self._groups.pop(sources, None)
        if group.program is None:
            return None
        name = joined.numbered(source.entry if lanes else CALL, sources.index(source))
        loaded = _loaded(group.program, source, lanes, self._device, name)
        other = self._beside
        if group.is_new and loaded.guarded and other is not None:
            text = _text(sources, self._device)
            if not other.take(text, name):
                other.wait(text, name)
        return loaded

    def _together(
        self, sources: tuple[KernelSource, ...], others: tuple[KernelSource, ...]
    ) -> tuple[_Program, bool]:
        """The program of several sources, and whether it was built now. Raises CompileError,
        InvalidCall."""
        lanes = [_lanes(source) for source in sources]
        key = _key(sources)
        if (binary := self._kept.get(key)) is not None:
            with suppress(cl.Error):
                return self._from(binary), False
            self._kept.remove(key)
        self._share(others)
        program = self._built(sources, _whole(sources))
        for number, source in enumerate(sources):
            if lanes[number]:  # a binary does not tell the arguments
                name = joined.numbered(source.entry, number)
                _check_arguments(program, source, lanes[number], name)
        self._kept.note(key, program, len(_whole(sources).text))
        return program, True

    def _share(self, sources: tuple[KernelSource, ...]) -> None:
        """Let a second process build those groups of sources that are not built."""
        if self._beside is not None:
            with self._lock:
                groups = [g for g in joined.groups(sources) if len(g) > 1]
                known, kept = self._groups, self._kept.get
                awaited = [g for g in groups if g not in known or known[g].program is None]
                texts = [_text(g, self._device) for g in awaited if kept(_key(g)) is None]
            self._beside.add(texts)

    def _built(self, sources: tuple[KernelSource, ...], whole: KernelSource) -> _Program:
        """A group's program, once its turn has come where another process builds, too. Raises
        CompileError."""
        other = self._beside
        if other is None:
            return _build(self._context, self._device, whole, whole.text)
        text = _text(sources, self._device)
        with self._turn:
            if other.take(text):
                program = _build(self._context, self._device, whole, whole.text)
                other.built(text)
                return program
        other.wait(text)
        return _build(self._context, self._device, whole, whole.text)

    def _from(self, binary: bytes) -> _Program:
        program = _Program(self._context, [self._device], [binary])
        program._build(b"", [self._device])
        return program

    def _called(self, source: KernelSource) -> _Program | None:
        """The program with `hal_launch` alone as a kernel, which calls the entry as a function of
        the right arguments: drivers generate code for each kernel. None where that does not build,
        for whatever reason."""
        try:
            text = source.text + _checked_call(source)
            return _build(self._context, self._device, source, text, " -D__kernel=")
        except CompileError:
            return None

    def keep(self) -> None:
        """Put what was built into the cache."""
        self._kept.keep()

    def _kept_program(self, source: KernelSource, lanes: int) -> Loaded | None:
        """The program from the cache; a binary that the driver does not take is none."""
        binary = self._kept.get(source)
        if binary is None:
            return None
        try:
            return _loaded(self._from(binary), source, lanes, self._device)
        except (cl.Error, CompileError):
            self._kept.remove(source)
            return None


def _lanes(source: KernelSource) -> int:
    """The members of its work-groups, 0 where it does not say. Raises CompileError."""
    return whole_options(source, ("lanes",))["lanes"]


def _key(sources: tuple[KernelSource, ...]) -> KernelSource:
    """What a group is kept by: to write its text takes longer than to read its binary."""
    digest = hashlib.sha256(repr(sources).encode(errors="backslashreplace")).hexdigest()
    return KernelSource(sources[0].format, digest, sources[0].entry, ())


@lru_cache(maxsize=_MOST_GROUPS)
def _whole(sources: tuple[KernelSource, ...]) -> KernelSource:
    """The sources of a group as one. Raises CompileError."""
    parts = []
    for number, source in enumerate(sources):
        lanes = _lanes(source)
        text = _written(source, lanes) if lanes else source.text + _checked_call(source)
        parts.append(joined.part(text, number, not lanes))
    return KernelSource(sources[0].format, "".join(parts), sources[0].entry, ())


@lru_cache(maxsize=_MOST_GROUPS)
def _text(sources: tuple[KernelSource, ...], device: cl.Device) -> Text:
    """What another process needs to build a group. Raises CompileError."""
    whole, kernels = _whole(sources), []
    for number, source in enumerate(sources):
        lanes = _lanes(source)
        if lanes and _guarded(source, lanes) is None:
            continue
        kinds = [0 if kind == _BYTES else _NBYTES[kind] for kind in _kinds(source.params)]
        kernels.append((joined.numbered(source.entry if lanes else CALL, number), (*kinds, 1)))
    return Text(whole.text, _options(device, whole), tuple(kernels))


def _loaded(
    program: _Program, source: KernelSource, lanes: int, device: cl.Device, name: str = ""
) -> Loaded:
    """The program with its first kernel, which has this name or that of a source alone. Raises
    CompileError where it has none of that name, or the device none of its work-groups."""
    name = name or (_short(source.entry) if lanes else CALL)
    numbers = tuple(accumulate((len(_kinds_of(p)) for p in source.params), initial=0))
    guarded = not lanes or _guarded(source, lanes) is not None
    loaded = Loaded(source.entry, program, name, source.params, lanes or 1, guarded, numbers)
    loaded.spare.append(loaded.kernel())
    lanes = lanes or 1
    most = loaded.spare[0].get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, device)
    if lanes > most:
        raise CompileError(f"it needs work-groups of {lanes}; {device.name} runs at most {most}")
    return loaded


def _binary(program: _Program) -> bytes | None:
    """What the driver made of a program, where it tells."""
    with suppress(cl.Error):
        found: Any = program.get_info(cl.program_info.BINARIES)
        return bytes(found[0])
    return None


def _kinds(params: tuple[Param, ...]) -> list[str]:
    """The types of the kernel arguments of parameters."""
    return [kind for param in params for kind in _kinds_of(param)]


def _kinds_of(param: Param) -> tuple[str, ...]:
    return (_BYTES, "ulong") if param.kind is ParamKind.BUFFER else (_TYPES[param.dtype],)


def _short(entry: str) -> str:
    """The name that the driver knows an entry by. PoCL names files after kernels, and aborts when
    the name is too long for one."""
    return "hal_entry" if len(entry) > _LONGEST and entry.isidentifier() else entry


def _declared(params: tuple[Param, ...]) -> list[str]:
    """The declarations of a kernel's arguments."""
    kinds = enumerate(_kinds(params))
    return [f"{'__global ' * (kind == _BYTES)}{kind} a{i}" for i, kind in kinds]


def _call(source: KernelSource) -> str:
    given = ", ".join(f"a{i}" for i in range(len(_kinds(source.params))))
    params = ", ".join([*_declared(source.params), "uchar run"])
    return f"\nkernel void {CALL}({params}) {{ if (run) {source.entry}({given}); }}\n"


def _checked_call(source: KernelSource) -> str:
    """The same behind a declaration, which builds only with the right arguments."""
    return f"\nvoid {source.entry}({', '.join(_declared(source.params))});\n{_call(source)}"


def _guarded(source: KernelSource, lanes: int) -> str | None:
    """The text of a source that names its work-groups, with an entry that may do nothing."""
    return joined.guarded(source.text, source.entry) if lanes == 1 else None


def _written(source: KernelSource, lanes: int) -> str:
    """The same, or as it is."""
    return _guarded(source, lanes) or source.text


def _check_arguments(program: _Program, source: KernelSource, lanes: int, name: str = "") -> None:
    """Raise InvalidCall where an entry's arguments are not those of its parameters."""
    kernel = _kernel(program, name or _short(source.entry))
    type_name = cl.kernel_arg_info.TYPE_NAME
    found = [str(kernel.get_arg_info(i, type_name)) for i in range(kernel.num_args)]
    if _guarded(source, lanes) is not None:
        found.pop()
    if found != (wanted := _kinds(source.params)):
        text = f"its arguments are {found}; by its parameters they must be {wanted}"
        raise InvalidCall(f"{source.entry}: {text}")


def _build(
    context: cl.Context, device: cl.Device, source: KernelSource, text: str, more: str = ""
) -> _Program:
    options = _options(device, source) + more
    program = _Program(context, checked(text))
    try:
        program._build(options.encode(), [device])
    except cl.Error as error:
        said = str(program.get_build_info(device, cl.program_build_info.LOG))
        log = said.strip() or str(error)
        line = error_line(log, len(source.text.splitlines()))
        raise CompileError(f"{source.entry} does not build:\n{log}", log, line) from error
    return program


def _options(device: cl.Device, source: KernelSource) -> str:
    options = "-w -cl-std=CL1.2 -cl-kernel-arg-info"
    if rounds_correctly(device):
        options += " -cl-fp32-correctly-rounded-divide-sqrt"
    if (name := _short(source.entry)) != source.entry:
        options += f" -D{source.entry}={name}"
    return options


def _kernel(program: _Program, name: str) -> cl.Kernel:
    try:
        return cl.Kernel(program, name)
    except cl.Error as error:
        raise CompileError(f"the program has no kernel {name!r}: {error}", str(error)) from error
