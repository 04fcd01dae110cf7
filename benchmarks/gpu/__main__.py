"""`python -m benchmarks.gpu [--device cuda:0] [--quick] [PART...]`: each part in a process of
its own.

Runs from a bare checkout: its C is compiled where that has not been done, and plugins that are not
installed are found in `plugins/`. Writes a line of JSON for each row to `--out`, and a table. Ends
with status 1 when a bar is missed or a part fails, with 2 and the reason when the device does not
open. All parts take at most 8 minutes, of which the last one has what the others left.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    *("numpy", "pluggy", "llvmlite", "torch", "ml_dtypes", "safetensors", "click", "rich"),
    *("cffi", "crc32c", "sortedcontainers", "setuptools"),
)
PARTS = {
    "launch": 15,
    "products": 30,
    "bandwidth": 45,
    "attention": 30,
    "gpt2": 90,
    "losses": 75,
    "failures": 40,
    "groups": 25,
    "conformance": 55,
}
"""Each with the seconds after which it is ended, unless it is the last and there are more left."""
WHOLE_S, BUILDING_S, OPENING_S = 8 * 60, 45, 30
"""What all may take; what of that compiling the C of the checkout may; and to open the device,
without which nothing is measured."""


def _unbuilt() -> str:
    """Compile the C of this checkout where it has not been; gives why that cannot be done, or is
    empty."""
    for folder, made in ((ROOT, "stack/recorder/*.so"), (ROOT / "plugins" / "cpu", "src/*/*.so")):
        if list(folder.glob(made)):
            continue
        print(f"== compiling the C of {folder}", flush=True)
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        try:
            subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=BUILDING_S, check=True
            )
        except subprocess.TimeoutExpired:
            return f"`{' '.join(command)}` in {folder} did not end in {BUILDING_S} s"
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().splitlines() or [f"ended with {error.returncode}"]
            return f"`{' '.join(command)}` in {folder} failed (a C compiler is needed): {said[-1]}"
    return ""


def _environment() -> dict[str, str]:
    """With entry points of the plugins in this checkout that are not installed."""
    known = {e.name for e in entry_points(group="hal.plugins")}
    paths = [str(ROOT)]
    for name in ("cuda", "cpu"):
        source = ROOT / "plugins" / name / "src"
        if name in known or (name == "cpu" and not list(source.rglob("*.so"))):
            continue
        facts = ROOT / "build" / "gpu" / f"hal_plugin_{name}-0.dist-info"
        facts.mkdir(parents=True, exist_ok=True)
        (facts / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: hal-plugin-{name}\nVersion: 0\n"
        )
        (facts / "entry_points.txt").write_text(
            f"[hal.plugins]\n{name} = hal_plugin_{name}.plugin\n"
        )
        paths += [str(source), str(facts.parent)]
    if given := os.environ.get("PYTHONPATH"):
        paths.append(given)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


_OPENED = """
import sys
import hal
from hal.core.values import CUDA_C, KernelSource
with hal.open(sys.argv[1], wrappers=()) as device:
    if CUDA_C in device.info.formats:
        device.load(KernelSource(CUDA_C, 'extern "C" __global__ void f() {}', "f", ()))
        import torch
        if not torch.cuda.is_available():
            sys.exit("PyTorch, which is what this device is measured against, finds no CUDA")
"""


def _lacking(device: str, env: dict[str, str]) -> str:
    """Why the device cannot be opened, in a line; empty where it can."""
    command = [sys.executable, "-c", _OPENED, device]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=OPENING_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{device} does not open in {OPENING_S} s"
    said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
    return f"{device} does not open: {said[-1]}" if done.returncode else ""


def _shown(row: dict[str, object]) -> str:
    def number(value: object) -> str:
        return f"{value:,.4g}" if isinstance(value, float | int) else "absent"

    ratio = f", ratio {number(row['ratio'])}" if row["ratio"] else ""
    peer = f" against {number(row['peer'])} ({row['peer_name']})" if row["peer_name"] else ""
    bar = f", bar: {row['bar']}" if row["bar"] else ""
    note = f"\n       {row['note']}" if row["note"] else ""
    found = f"{number(row['ours'])} {row['unit']}{peer}{ratio}{bar}"
    return f"{row['status']:7}{row['claim']}: {found}{note}"


def _run(
    part: str, args: argparse.Namespace, env: dict[str, str], limit_s: float
) -> tuple[bool, list[str]]:
    """Whether a part did what it should, and its rows as lines of JSON."""
    command = [sys.executable, "-m", "benchmarks.gpu.parts", part, args.device, f"{limit_s:.0f}"]
    started = time.monotonic()
    child = subprocess.Popen(
        [*command, *["--quick"] * args.quick],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = child.communicate(timeout=limit_s)
        why = f"ended with {child.returncode}" * bool(child.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with the processes that it started
        text, _ = child.communicate(timeout=10)
        why = f"did not end in {limit_s:.0f} s"
    lines = [line for line in text.splitlines() if line.startswith("{")]
    print(f"== {part}: {time.monotonic() - started:.1f} s {why}", flush=True)
    rows = [json.loads(line) for line in lines]
    for row in rows:
        print(_shown(row), flush=True)
    return not why and bool(rows) and all(r["status"] in ("ok", "info") for r in rows), lines


def main() -> int:
    """Run the parts; gives the status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", default=list(PARTS), metavar=f"PART of {', '.join(PARTS)}"
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs at all")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu" / "rows.jsonl")
    args = parser.parse_args()
    if unknown := sorted(set(args.parts) - PARTS.keys()):
        parser.error(f"no parts {unknown}; known are {', '.join(PARTS)}")
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(f"missing packages: pip install {' '.join(missing)}", file=sys.stderr)
        return 2
    began_s, good, lines = time.monotonic(), True, []
    lacking = _unbuilt() or _lacking(args.device, env := _environment())
    if lacking:
        print(lacking, file=sys.stderr)
        return 2
    for part in args.parts:
        left_s = WHOLE_S - (time.monotonic() - began_s) - 2
        limit_s = left_s if part == args.parts[-1] else min(PARTS[part], left_s)
        did, found = _run(part, args, env, max(limit_s, 1))
        good, lines = good and did, lines + found
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(f"{line}\n" for line in lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
