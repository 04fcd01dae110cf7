"""Builds wheels of HAL and of the CPU's plugin, and installs them, without a compiler on the PATH,
in a fresh environment, which then runs the README's first training: `make wheels`.

    python -m tests.journeys.wheels [FOLDER]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 900.0  # building, and fetching what the wheels need


def run(*command: str | Path, path: str | None = None) -> str:
    environment = {**os.environ, **({} if path is None else {"PATH": path})}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, cwd=tempfile.gettempdir(), env=environment, text=True, timeout=LIMIT_S,
        capture_output=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(folder: Path) -> None:
    """Raises SystemExit that says what is wrong."""
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    sources = [ROOT, ROOT / "plugins" / "cpu"]
    run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", folder, *sources)
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        inside = zipfile.ZipFile(wheel).namelist()
        sources_inside = [name for name in inside if name.endswith((".c", ".h"))]
        if "-cp311-abi3-" not in wheel.name or sources_inside:
            raise SystemExit(f"{wheel.name} is for one Python alone, or holds {sources_inside}")
        if not any(name.endswith("LICENSE") for name in inside) and "accel" in wheel.name:
            raise SystemExit(f"{wheel.name} has no licence")
    (code, *_) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    with tempfile.TemporaryDirectory() as place:
        run(sys.executable, "-m", "venv", place)
        python, own = Path(place, "bin", "python"), f"{place}/bin"
        run(python, *pip, "install", "--find-links", folder, "hal-accel[cpu]", path=own)
        found = run(python, "-c", "import shutil; print(shutil.which('cc'))", path=own)
        if found.strip() != "None":
            raise SystemExit(f"the environment has a compiler: {found}")
        print(run(python, "-c", code, path=own), end="")  # noqa: T201
        print(run(python, "-m", "hal", "devices", path=own), end="")  # noqa: T201
    print(*(wheel.name for wheel in wheels), sep="\n")  # noqa: T201


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).resolve()
    main(target)
