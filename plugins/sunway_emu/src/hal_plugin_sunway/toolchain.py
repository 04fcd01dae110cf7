"""From C text to what the emulator loads: the host's C compiler does it."""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from hal.cache import Cache
from hal.core.errors import CompileError, PluginError
from hal_plugin_sunway.folder import Folder

HERE = Path(__file__).parent
INCLUDE, NATIVE = HERE / "include", HERE / "native"

_COMPILE_S = 120.0
_TLS = {"x86_64": ["-mtls-dialect=gnu"], "aarch64": ["-mtls-dialect=trad"]}
"""Thread-local variables are found by a call on these machines, which the emulator answers."""

_PROGRAM = (
    *("-std=gnu11", "-O2", "-march=native", "-mtune=generic", "-ffp-contract=off"),
    "-fno-math-errno",
    *("-fPIC", "-shared", "-ftls-model=global-dynamic", "-fno-zero-initialized-in-bss"),
    *("-g1", "-w"),
)
"""A variable that is set to zero is as initialised as one that is set to another number: a launch
finds it so. Tuned for some processors, GCC 12 makes gathers of loops with conditions, whose mask is
1 and not all ones: they load nothing."""
_VECTORS = ("-ftree-vectorize", "-fvect-cost-model=dynamic")
"""What GCC's -O3 has over -O2 for loops that a compiler wrote; its other passes take minutes for
some of them."""

NOWHERE = Cache("")
"""Keeps nothing."""

_HOST = {
    os.strerror(number): number
    for number in (
        *(errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE),
        *(errno.EFBIG, errno.ENOSPC, errno.EDQUOT),
    )
}
_LACKS = re.compile(
    rf"(?:fatal error|Fatal error|ld): .*: ({'|'.join(map(re.escape, _HOST))})$", re.M
)
"""How the tools of a compiler say that the host lacks something, and not the program."""

_NUMBERS = itertools.count()
_BUILDING = threading.Lock()
_WORKER = ("-std=gnu11", "-O2", "-ffp-contract=off", "-rdynamic")


@functools.cache
def compiler() -> str:
    """The host's C compiler. Raises PluginError that says what to install."""
    if platform.machine() not in _TLS:
        known = ", ".join(_TLS)
        raise PluginError(f"the emulator runs on {known}; this machine is {platform.machine()}")
    for name in ("gcc", "cc", "clang"):
        if found := shutil.which(name):
            return found
    raise PluginError(
        "no C compiler is installed, and slave-core programs are C: install gcc "
        "(Debian, Ubuntu: apt-get install gcc libc6-dev; Fedora: dnf install gcc)"
    )


@functools.cache
def version() -> str:
    """The compiler's first line about itself: programs of another compiler are other programs."""
    command = [compiler(), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    return done.stdout.split("\n", 1)[0]


@functools.cache
def target() -> str:
    """What compiled programs are for: this compiler, and a processor with these instructions."""
    text = Path("/proc/cpuinfo").read_text(errors="replace")
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    instructions = _digest([found[1].encode()]) if found else "unknown"
    return f"{version()} for {platform.machine()} {instructions[:8]}"


@functools.cache
def _own(process: int) -> Folder:
    """A process's folder for the emulator itself, which goes when it ends; one that was forked from
    it makes its own."""
    return Folder()


def worker(cache: Cache = NOWHERE) -> Path:
    """The emulator's process, built unless it is there or kept. Raises PluginError."""
    sources = sorted(NATIVE.glob("*.c"))
    texts = [p.read_bytes() for p in (*sources, *NATIVE.glob("*.h"), *INCLUDE.glob("*.h"))]
    with _BUILDING:  # core groups that start at the same time share the folder and the build
        built = (
            Path(_own(os.getpid()).name) / f"worker-{_digest([target().encode(), *sorted(texts)])}"
        )
        if not built.exists() and not _fetch(cache, built):
            try:
                _compile([*_WORKER, f"-I{INCLUDE}", *map(str, sources), "-ldl"], built)
            except CompileError as error:
                raise PluginError(f"the emulator itself does not compile:\n{error.log}") from error
            cache.put(built.name, built.read_bytes())
    return built


def program(
    text: str,
    folder: Path,
    name: str,
    role: str = "slave",
    flags: Sequence[str] = (),
    cache: Cache = NOWHERE,
) -> Path:
    """A program of the `role` "slave" or "host", compiled into `folder` unless it is there or kept.

    `name` is what messages call the text. Raises CompileError with the compiler's log and line.
    """
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise CompileError(f"{name}: a zero byte is no character of a program", "zero byte", line)
    vectors = () if Path(compiler()).name == "clang" else _VECTORS
    options = [*_PROGRAM, *vectors, *_TLS[platform.machine()], f"-D__sw_{role}__=1", *flags]
    data = text.encode("utf-8", "surrogatepass")
    key = [target().encode(), repr(options).encode(), _headers(), data]
    built = folder / f"{role}-{_digest(key)}.so"
    if not built.exists() and not _fetch(cache, built):
        with tempfile.NamedTemporaryFile(suffix=".c", prefix=f"{role}-", dir=folder) as source:
            source.write(data)
            source.flush()
            _compile([*options, f"-I{INCLUDE}", "-x", "c", source.name, "-lm"], built, name)
        cache.put(built.name, built.read_bytes())
    return built


def discard(built: Path, cache: Cache) -> None:
    """Forget what was built or kept, so that it is built anew: it cannot be loaded."""
    cache.remove(built.name)
    built.unlink(missing_ok=True)


def line_of(built: Path, offset: int) -> int:
    """The source line of an address in a compiled program; 0 where no tool knows."""
    tool = shutil.which("addr2line")
    if tool is None:
        return 0
    command = [tool, "-e", str(built), hex(offset)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    found = re.search(r":(\d+)", done.stdout)
    return int(found[1]) if found else 0


@functools.cache
def _headers() -> bytes:
    return b"".join(p.read_bytes() for p in sorted(INCLUDE.glob("*.h")))


def _digest(parts: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]


def _compile(arguments: Sequence[str], built: Path, name: str = "") -> None:
    """Compile into a new file and move it into place, so that nobody sees half of one. Raises
    OSError where the host has no room, memory or process for the compiler, CompileError else."""
    partial = built.with_suffix(f".{next(_NUMBERS)}.part")
    command = [compiler(), *arguments, "-o", str(partial)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            restore_signals=False,  # a file beyond the limit is an error, and no signal
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"{name}: the compiler did not end in {_COMPILE_S:g} s") from None
    if done.returncode:
        partial.unlink(missing_ok=True)
        if lacks := _LACKS.search(done.stderr):
            raise OSError(_HOST[lacks[1]], lacks[1], lacks[0].strip())
        # The log with the text's own name in place of the file that it was compiled from.
        printed = done.stderr.strip()
        log = re.sub(r"\S*/(?:slave|host)-\w+\.c", name, printed) if name else printed
        found = re.search(r":(\d+):(?:\d+:)? (?:fatal )?error", done.stderr)
        raise CompileError(f"{name} does not compile:\n{log}", log, int(found[1]) if found else 0)
    partial.replace(built)


def _fetch(cache: Cache, built: Path) -> bool:
    """Put what is kept under the name of `built` there; False where nothing is."""
    content = cache.get(built.name)
    if content is None:
        return False
    partial = built.with_suffix(f".{next(_NUMBERS)}.part")
    try:
        partial.write_bytes(content)
        partial.chmod(0o700)
        partial.replace(built)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return True
