"""Runs tests under a sanitizer and collects what it found, also in the processes that they start.

.venv/bin/python -m tests.sanitizers.run address tests/comm/engine -k messages
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hal_conformance.busy import Deadline
from tests.sanitizers.build import ROOT, Sanitizer, build, gcc, preloaded, runtime

_CHILD = Path(__file__).parent / "child"
_SUPPRESSIONS = Path(__file__).with_name("thread.supp")
_START_S = 60.0
_FINDING = re.compile(r"runtime error:|ERROR: |CHECK failed|WARNING: ThreadSanitizer")
"""What is none: AddressSanitizer's warning that a process jumped off a stack of its own."""
_OPTIONS = {
    Sanitizer.ADDRESS: {
        # The interpreter itself leaks at its end. A test may ask for more memory than there is.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_segv=0:log_path={log}",
        "UBSAN_OPTIONS": "print_stacktrace=1:log_path={log}",
        "PYTHONMALLOC": "malloc",
    },
    # The exit status stays the tests' own: what they expect of a child holds with a finding, too.
    Sanitizer.THREAD: {
        "TSAN_OPTIONS": f"exitcode=0:die_after_fork=0:history_size=4:"
        f"suppressions={_SUPPRESSIONS}:log_path={{log}}"
    },
}


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    returncode: int
    """Of the program."""
    output: str
    """What it wrote, both streams."""
    findings: str
    """The sanitizer's reports, one after the other; empty when there is none."""


def obstacle(sanitizer: Sanitizer) -> str:
    """Why the sanitizer cannot run here; empty when it can."""
    if gcc() is None:
        return "gcc is not installed"
    if runtime(sanitizer) is None:
        return f"gcc has no {sanitizer.runtime}"
    if _prefix(sanitizer) is None:
        return f"a process with {sanitizer.runtime} does not start, with fixed addresses neither"
    return ""


def start(sanitizer: Sanitizer) -> tuple[str, ...]:
    """What a command begins with so that it starts under the sanitizer: nothing, or to have
    addresses that are not random, which some versions of the thread sanitizer need."""
    return _prefix(sanitizer) or ()


def run(
    sanitizer: Sanitizer,
    command: Sequence[str],
    deadline_s: float,
    echo: bool = False,
    modules: Path | None = None,
) -> Outcome:
    """Run Python with these arguments on the instrumented modules, or on those of a folder.

    `echo` shows its output instead of keeping it. Raises subprocess.TimeoutExpired after
    a `Deadline` of `deadline_s`, and RuntimeError when the sources do not compile.
    """
    folder = modules or build(sanitizer)
    with tempfile.TemporaryDirectory() as work:
        child = subprocess.Popen(
            [*start(sanitizer), sys.executable, *command],
            cwd=ROOT,
            env=_environment(sanitizer, folder, Path(work)),
            stdout=None if echo else subprocess.PIPE,
            stderr=None if echo else subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        said = _said(child, deadline_s)
        reports = sorted(Path(work).glob("report.*"))
        texts = [report.read_text(errors="replace") for report in reports]
    findings = "\n".join(_short(text) for text in texts if _FINDING.search(text))
    return Outcome(child.returncode, said or "", findings)


def _said(child: subprocess.Popen[str], deadline_s: float) -> str | None:
    """What a process said until its end, which a busy machine may put off; it is killed where that
    does not come in time."""
    deadline = Deadline(child.pid, deadline_s)
    try:
        while (left_s := deadline.left_s()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.communicate(timeout=left_s)[0]
        raise subprocess.TimeoutExpired(child.args, deadline_s)
    finally:
        child.kill()
        child.wait(timeout=60)
        if child.stdout is not None:
            child.stdout.close()


def _environment(sanitizer: Sanitizer, folder: Path, work: Path) -> dict[str, str]:
    search = [str(_CHILD), os.environ.get("PYTHONPATH", "")]
    options = {k: v.format(log=work / "report") for k, v in _OPTIONS[sanitizer].items()}
    return {
        **os.environ,
        **options,
        "LD_PRELOAD": preloaded(sanitizer),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
        "HAL_INSTRUMENTED": str(folder),
        "HAL_CACHE_DIR": str(work / "cache"),  # compiled with a sanitizer is compiled otherwise
    }


@functools.cache
def _prefix(sanitizer: Sanitizer) -> tuple[str, ...] | None:
    setarch = shutil.which("setarch")
    for prefix in ((), (setarch, "-R") if setarch else ()):
        starts = subprocess.run(
            [*prefix, sys.executable, "-c", ""],
            env=os.environ | {"LD_PRELOAD": preloaded(sanitizer), "ASAN_OPTIONS": "detect_leaks=0"},
            capture_output=True,
            timeout=_START_S,
            check=False,
        )
        if starts.returncode == 0:
            return prefix
    return None


def _short(report: str) -> str:
    """Without the outer frames of stacks, which are the interpreter's."""
    return re.sub(r"^ +#(?:\d\d+|[89]) .*\n", "", report, flags=re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """`address` or `thread`, then pytest's own arguments. Gives 1 when a test or the sanitizer
    found something."""
    sanitizer = Sanitizer[arguments[0].upper()]
    if reason := obstacle(sanitizer):
        sys.exit(f"{sanitizer.value}: {reason}")
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *arguments[1:]]
    outcome = run(sanitizer, pytest, deadline_s=3600.0, echo=True)
    sys.stdout.write(outcome.findings)
    return 1 if outcome.returncode or outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
