"""Finds out which case kills which generated fault: python -m tests.mutants.generated [TEXT ...]

Runs the cases that exercise a fault's place, until one is red that is green on the right device.
Without arguments all faults are tried, generated.json is written and from it docs/mutants.md.
"""

import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import click
from hal_plugin_cpu import plugin as cpu
from hal_plugin_opencl import plugin as opencl

import hal
from hal.core.spec import hookimpl
from hal.reference import plugin as reference
from hal_conformance import faults
from hal_conformance.case import Case
from hal_conformance.catalog import catalog
from hal_conformance.judge import Outcome, Result, judge
from hal_conformance.rig import Rig, Setting
from tests.mutants.hooks import hooks
from tests.mutants.lives import lives
from tests.mutants.meanings import meanings
from tests.mutants.narrow import PLUGIN as NARROW
from tests.mutants.narrow import narrow
from tests.mutants.population import KEPT, Generated, population
from tests.mutants.reports import reports
from tests.mutants.texts import texts

KILLS = Path(__file__).with_name("generated.json")
PATIENCE_S = (1.5, 5.0, 20.0)
"""How long a case waits here for what must happen, on a machine that has nothing else to do: the
next longer where the right device is red, too."""
PLUGINS: dict[str, Any] = {"reference": reference, "cpu": cpu, "opencl": opencl, "narrow": NARROW}
SETTINGS = {
    "reference": {"progress_ms": "100"},
    "cpu": {"progress_s": "0.2", "memory_nbytes": str(1 << 30)},
    "opencl": {"progress_s": "5", "memory_nbytes": str(1 << 28)},
    "narrow": {},
}
NOT_THESE = ("A.", "K.", "J.", "G.", "H.")


@dataclass(frozen=True)
class Kill:
    """What became of a fault: the case that is red, how, and whether the message has a word of its
    cause; an empty case for a fault that lived. The case `undecided` was red on the right device,
    too, however long it was given: it can tell nothing here."""

    fault: str
    kind: str
    place: str
    case: str = ""
    detail: str = ""
    points: bool = False
    seconds: float = 0.0
    undecided: str = ""


def kill(fault: Generated, cache: str) -> Kill:
    """Try the cases that exercise the fault's place, in their order."""
    begin_s, undecided = time.monotonic(), ""
    KEPT.clear()
    lived = Kill(fault.name, fault.kind, fault.place)
    for case in exercising(fault):
        result = _red(case, fault, cache)
        if result is None:
            undecided = case.id
        elif result.outcome is Outcome.FAIL:
            said = f"{case.id} {result.detail}"
            points = any(word.lower() in said.lower() for word in fault.words)
            detail = result.detail.strip()[:300]
            lived = replace(lived, case=case.id, detail=detail, points=points)
            break
    seconds = round(time.monotonic() - begin_s, 2)
    return replace(lived, seconds=seconds, undecided="" if lived.case else undecided)


def _red(case: Case, fault: Generated, cache: str) -> Result | None:
    """What the case says of the fault. Where it is red, the right device has to be green with the
    same patience, alone: else both have more, so that a busy machine kills nothing and saves
    nothing. None where the right device stays red."""
    for patience_s in PATIENCE_S:
        with impatient(patience_s):
            with fault.world():
                result = judge(case, setting_of(fault.device, cache, fault))
            if result.outcome is not Outcome.FAIL:
                return result
            right = judge(case, setting_of(fault.device, cache, None))
            if right.outcome in (Outcome.PASS, Outcome.UNSUPPORTED):
                return result
    return None


def exercising(fault: Generated) -> Iterator[Case]:
    """The cases of a fault's place, those of its first text first."""
    seen: set[str] = set()
    for text in fault.cases:
        for case in catalog():
            if text in case.id and case.id not in seen and not case.id.startswith(NOT_THESE):
                seen.add(case.id)
                yield case


@contextlib.contextmanager
def impatient(patience_s: float) -> Iterator[None]:
    """Waits that have no deadline of their own give up sooner."""
    patience_s *= max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    with contextlib.ExitStack() as stack:
        for wait in (Rig.done, Rig.failed, Rig.until, faults.caught):
            first = wait.__defaults__[:-1]
            stack.enter_context(patch.object(wait, "__defaults__", (*first, patience_s)))
        yield


def setting_of(device: str, cache: str, fault: Generated | None) -> Setting:
    """How cases see a device, with the fault planted in it."""
    name, found = f"{device}:0", functools.partial(_registry, device, fault)
    return Setting(name, (name,), SETTINGS[device], cache, registry=found)


@functools.lru_cache(maxsize=4)
def _registry(device: str, fault: Generated | None) -> hal.Registry:
    plugin = PLUGINS[device]

    def open_device(index: int, options: hal.core.values.OpenOptions) -> object:
        opened = plugin.open_device(index, options)
        if fault is not None:
            fault.plant(opened)
        return opened

    made = SimpleNamespace(
        enumerate_devices=plugin.enumerate_devices, open_device=hookimpl(open_device)
    )
    return hal.Registry(extra={device: made})


def read() -> list[Kill]:
    """What the last run found."""
    return [Kill(**row) for row in json.loads(KILLS.read_text())] if KILLS.exists() else []


def write(kills: list[Kill]) -> None:
    """Keep what a run found, without what differs from run to run."""
    rows = [asdict(replace(k, detail="", seconds=0.0)) for k in kills]
    kept = [{key: value for key, value in row.items() if value} for row in rows]
    KILLS.write_text(json.dumps(kept, indent=0) + "\n")


def page() -> str:
    """The part of docs/mutants.md on generated faults."""
    kills = read()
    lived = [k for k in kills if not k.case]
    rows = []
    for kind, place in dict.fromkeys((k.kind, k.place) for k in kills):
        same = [k for k in kills if (k.kind, k.place) == (kind, place)]
        by = ", ".join(f"`{c}`" for c in list(dict.fromkeys(k.case for k in same if k.case))[:3])
        rows.append(
            f"| {kind} | {place} | {sum(bool(k.case) for k in same)} of {len(same)} | {by} |"
        )
    holes = [f"* {text}" for text in (*wrong(lived), *NOT_GENERATED)]
    return "\n".join([*_HEAD.format(len(kills) - len(lived), len(kills)).splitlines(), *rows, "",
                      "### What no case sees", "", *holes, ""])  # fmt: skip


def wrong(kills: Iterable[Kill]) -> list[str]:
    """What a run may not end with: faults that lived, or that cases could not tell from the right
    device."""
    return [
        f"{k.fault}: {f'{k.undecided} is red on the right device, too' if k.undecided else 'lived'}"
        for k in kills
        if not k.case
    ]


NOT_GENERATED = (
    "A cache that forgets the compiler's version: no case can give a device another compiler.",
    "Wrong code of sunway's compiler: faults of texts stand in llvm-ir/1 and opencl-c/1 alone.",
    "Reports of instances that end: a machine may be right that cannot tell them. Then the level "
    "says that `I.getting-on-is-no-hang-within` is not proved.",
    "What is slow and declared nowhere: a device that declares no figure is as slow as it likes.",
    "Misaligned memory of a device whose programs are all in hal-tile/1 and that maps none: nobody "
    "sees an address there.",
)
"""What no fault here stands for."""


_HEAD = """
## Generated faults

Each class of fault at every place where it can be, at several sizes: at the hooks of the reference
device, which is the template of every plugin, and of the CPU plugin's, in the operations of a
device's own interpreter, and in what compilers of LLVM IR and of OpenCL C make of a text (`make
mutants`). A case kills a fault when it is red with it and green without. The tests draw new
samples. {} of {} are killed.

| class | place | killed | by |
| --- | --- | --- | --- |"""


ALL = (*population(), *meanings(), *hooks(), *lives(), *reports(), *texts(), *narrow())


def main(*texts: str) -> None:
    """Try all faults, or those whose name has one of the texts."""
    kept = {k.fault: k for k in read()}
    chosen = [f for f in ALL if not texts or any(t in f.name for t in texts)]
    with tempfile.TemporaryDirectory() as folder:
        for fault in chosen:
            found = kill(fault, f"{folder}/cache")
            kept[fault.name] = found
            vague = "" if found.points or not found.case else f"  NO WORD: {found.detail[:90]}"
            click.echo(f"{found.seconds:6.1f} s {fault.name}: {found.case or 'LIVED'}{vague}")
            rows = [kept[f.name] for f in ALL if f.name in kept]
            write(rows)
    if not texts:
        table = import_module("tests.mutants.table")
        table.PAGE.write_text(table.page(table.read(table.KILLED)))
    tried = [kept[f.name] for f in chosen]
    click.echo(f"{sum(not k.case for k in tried)} of {len(tried)} lived")
    left = wrong(tried)
    click.echo("".join(f"wrong: {line}\n" for line in left), nl=False)
    sys.stdout.flush()
    os._exit(1 if left else 0)  # whatever threads the faults left behind


if __name__ == "__main__":
    main(*sys.argv[1:])
