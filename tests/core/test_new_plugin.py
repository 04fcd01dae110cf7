"""The project that `hal new-plugin` writes works, is clean, and names nothing but itself."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from hal.core.errors import InvalidCall
from hal_tools.cli import main
from hal_tools.new.project import write_project

ROOT = Path(__file__).parents[2]
MYPY_CACHE = str(ROOT / ".mypy_cache")
NAMES = ["mychip", "x1", "a2345678901234567890"]


def run(command, folder, **variables):
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )


def installed(folder, name):
    """What pip does for an editable project, without pip: a site folder with its entry point."""
    site = folder / "site"
    info = site / f"hal_plugin_{name}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hal-plugin-{name}\n")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    [(entry, module)] = project["entry-points"]["hal.plugins"].items()
    (info / "entry_points.txt").write_text(f"[hal.plugins]\n{entry} = {module}\n")
    return os.pathsep.join([str(site), str(folder / "src"), str(ROOT)])


@pytest.mark.slow
def test_the_plugin_works_at_once_and_its_tests_pass(tmp_path):
    folder = write_project("mychip", tmp_path, ())
    path = installed(folder, "mychip")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = run(tests, folder, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_its_files_are_clean(tmp_path, name):
    folder = write_project(name, tmp_path, ())
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = run([sys.executable, "-m", "ruff", *command], folder)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_its_types_are_strict(tmp_path):
    folder = write_project("mychip", tmp_path, ())
    options = ["--follow-imports=silent", "--no-namespace-packages", "--cache-dir", MYPY_CACHE]
    command = [sys.executable, "-m", "mypy", *options, "src"]
    done = run(command, folder, MYPYPATH=str(ROOT))
    assert done.returncode == 0, done.stdout


def test_its_linter_is_ours():
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    text = (ROOT / "hal_tools/new/templates/pyproject.toml.txt").read_text()
    theirs = tomllib.loads(text)["tool"]["ruff"]
    for key in ("select", "ignore"):
        assert theirs["lint"][key] == ours["lint"][key]
    assert theirs["line-length"] == ours["line-length"]


@pytest.mark.parametrize("name", NAMES)
def test_no_file_speaks_of_the_reference_device(tmp_path, name):
    folder = write_project(name, tmp_path, ())
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(files) > 10
    for path in files:
        assert "reference" not in path.read_text().lower(), path
        assert name == "mychip" or "mychip" not in path.read_text().lower(), path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MyChip", "lower-case"),
        ("my-chip", "lower-case"),
        ("", "2 to 20"),
        ("x", "2 to 20"),
        ("9chip", "a letter first"),
        ("../up", "letters and digits"),
        ("a" * 21, "2 to 20"),
        ("cpu", "installed already"),
    ],
)
def test_a_bad_name_is_refused_and_nothing_is_written(tmp_path, name, words):
    with pytest.raises(InvalidCall, match=words):
        write_project(name, tmp_path, ["cpu"])
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "hal-plugin-mychip").mkdir()
    with pytest.raises(InvalidCall, match="exists already"):
        write_project("mychip", tmp_path, ())
    with pytest.raises(InvalidCall, match="no folder"):
        write_project("mychip", tmp_path / "missing", ())


def test_the_command_says_what_comes_next(tmp_path):
    done = CliRunner().invoke(main, ["new-plugin", "mychip", "--into", str(tmp_path)])
    assert done.exit_code == 0
    assert "hal doctor mychip" in done.stdout
    again = CliRunner().invoke(main, ["new-plugin", "mychip", "--into", str(tmp_path)])
    assert again.exit_code == 1
