"""Compilation of `llvm-ir/1` for this host, and its linker. To import this loads LLVM."""

from __future__ import annotations

import ctypes
import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager

from hal.core.errors import CompileError
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.processor import processor

_RUNTIME_SYMBOLS = ("__truncdfhf2", "__truncsfhf2", "__extendhfsf2", "__truncsfbf2")
_MATHEMATICS = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1
    fabs fdim floor fma fmax fmin fmod frexp hypot ldexp lgamma log log10 log1p log2 modf nearbyint
    pow remainder rint round roundeven sin sincos sinh sqrt tan tanh tgamma trunc
"""
_CALLABLE = frozenset(
    {name + suffix for name in _MATHEMATICS.split() for suffix in ("", "f")}
    | {"memcpy", "memmove", "memset"}
)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_LINE = re.compile(r"<string>:(\d+):\d+: error")
_ENTRY_TYPE = "void (ptr, ptr, i64, i64)"
_PER_COMPILER = 128


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _target_machine() -> Any:
    _initialise()
    triple, cpu = _host()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=processor().flags, opt=3, reloc="pic", codemodel="jitdefault"
    )


class _Own(threading.local):
    """Of each thread: a target machine, whose tables take longer to make than a small kernel."""

    machine: Any = None


_own = _Own()


def _own_machine() -> Any:
    """This thread's machine, which no other may use."""
    if _own.machine is None:
        _own.machine = _target_machine()
    return _own.machine


@cache
def _host() -> tuple[str, str]:
    """The triple of this process and the name of its processor."""
    return llvm.get_process_triple(), llvm.get_host_cpu_name()


@cache
def _layout() -> str:
    """How memory is laid out for it."""
    return str(_target_machine().target_data)


def is_known(text: str) -> bool:
    """Whether LLVM may compile the text in this process: it reports the mistakes in texts of known
    words and small types, but others may end the process.

    Raises CompileError for what it would take for something else (nothing, a NUL for the end, half
    a character), and for words that its parser does not know.
    """
    if not text.strip():
        raise CompileError("the program's text is empty", "<string>:1: the text is empty", 1)
    if bad := _NO_TEXT.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        log = f"<string>:{line}: the character {bad[0]!a}"
        raise CompileError(f"the program's line {line} has the character {bad[0]!a}", log, line)
    code = text.encode()
    level = lib.hc_vet(code, len(code))
    if level == lib.HC_VET_STRANGE:
        with llvm.create_context() as context, _parsed(text, context) as module:
            module.verify()
    return bool(level == lib.HC_VET_KNOWN)


def compile_here(text: str, entry: str) -> bytes:
    """Object code of a module in `llvm-ir/1`. Several threads may compile at once.

    Raises CompileError with LLVM's log and the line for text that is wrong or has no such entry.
    """
    # The module goes before its context on every path: the garbage collector would take any order.
    with llvm.create_context() as context, _parsed(text, context) as module:
        module.verify()
        functions = {f.name: f for f in module.functions}
        declared = {name for name, f in functions.items() if f.is_declaration}
        defined = functions.keys() - declared
        if entry not in defined:
            text = f"the program defines no function {entry!r}; it defines {sorted(defined)}"
            raise CompileError(text, text)
        if (kind := str(functions[entry].global_value_type)) != _ENTRY_TYPE:
            text = f"{entry!r} has type {kind}; an entry is {_ENTRY_TYPE}"
            raise CompileError(text, text)
        declared |= {g.name for g in module.global_variables if g.is_declaration}
        if unknown := sorted(n for n in declared - _CALLABLE if not n.startswith("llvm.")):
            text = (
                f"the program uses {', '.join(unknown)}; only the C mathematics library and "
                f"memcpy, memmove and memset may be called"
            )
            raise CompileError(text, text)
        machine = _own_machine()
        module.triple, module.data_layout = _host()[0], _layout()
        # Programs come vectorised, unrolled and with what a loop repeats before it. LLVM's levels
        # find nothing more in them: they took six times as long as these passes, for the same speed
        # of the code and the same bits of its results.
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
        manager = llvm.create_new_module_pass_manager()
        manager.add_sroa_pass()
        manager.add_instruction_combine_pass()
        manager.add_simplify_cfg_pass()
        try:
            _unlocked("LLVMPY_RunNewModulePassManager")(manager, module, builder)
        finally:
            # llvmlite finds the disposal of its base class, which does nothing: 55 KB would stay.
            NewPassManager._dispose(manager)
            manager.detach()
        with llvm.ffi.OutputString() as log:
            buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, log)
            if not buffer:
                raise CompileError(f"LLVM emitted no code: {log}", str(log))
        lib = llvm.ffi.lib
        try:
            return ctypes.string_at(
                lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer)
            )
        finally:
            lib.LLVMPY_DisposeMemoryBuffer(buffer)


@contextmanager
def _parsed(text: str, context: Any) -> Iterator[Any]:
    """A module of the text. LLVM's complaints in the body are CompileErrors."""
    try:
        with llvm.parse_assembly(text, context) as module:
            yield module
    except RuntimeError as error:
        log = str(error)
        found = _LINE.search(log)
        first = next((line for line in log.splitlines() if "error:" in line), log)
        raise CompileError(
            f"LLVM refused the program: {first}", log, int(found[1]) if found else 0
        ) from error


def _unlocked(name: str) -> Any:
    """A function of llvmlite's library without its lock, under which one thread at a time would be
    in LLVM. LLVM itself asks for no lock where modules are of different contexts (Programmer's
    Manual, "Achieving Isolation with LLVMContext")."""
    return getattr(llvm.ffi.lib, name)._cfn


class Jit:
    """LLVM's linker of object code into the process. Each linked object ends with its `close`.

    LLVM keeps a little memory of every linked object until its compiler ends, and a compiler until
    the last of its objects ends; so a compiler links `_PER_COMPILER` objects and is then replaced.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._compiler: Any = None

    def link(self, code: bytes, entry: str) -> tuple[Any, int]:
        """(library, address of the entry). Raises CompileError for symbols that nobody defines."""
        with self._lock:
            number = next(self._numbers)
            if number % _PER_COMPILER == 0:
                self._compiler = llvm.create_lljit_compiler(_target_machine())
            builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
            for name, address in _runtime_symbols():
                builder.import_symbol(name, address)
            try:
                library = builder.export_symbol(entry).link(self._compiler, f"program{number}")
            except RuntimeError as error:
                raise CompileError(f"the program cannot be linked: {error}", str(error)) from error
            return _Linked(self, library), library[entry]

    def close(self, library: Any) -> None:
        """Release the code."""
        with self._lock:
            library.close()


class _Linked:
    def __init__(self, jit: Jit, library: Any) -> None:
        self._jit, self._library = jit, library

    def close(self) -> None:
        self._jit.close(self._library)


@cache
def _runtime_symbols() -> tuple[tuple[str, int], ...]:
    found = ((name, lib.hc_symbol(name.encode())) for name in _RUNTIME_SYMBOLS)
    return tuple((n, int(ffi.cast("uintptr_t", p))) for n, p in found if p != ffi.NULL)
