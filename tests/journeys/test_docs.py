"""What the README and the guides say can be done as they say it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.machine import ROOT

GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "plugins/cpu/README.md"]
GUIDES += sorted((ROOT / "docs").rglob("*.md"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def fenced(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


def commands_of(path):
    """The commands of a guide's shell blocks and of its words in backquotes, without comments."""
    text = path.read_text()
    blocks = "\n".join(fenced(path, "sh"))
    return blocks.splitlines() + re.findall(r"`([^`\n]+)`", text)


def test_every_make_target_in_a_guide_exists():
    named = {(g, c.split()[1]) for g in GUIDES for c in commands_of(g) if re.match("make [a-z]", c)}
    assert not {(guide, target) for guide, target in named if target not in TARGETS}


def test_the_readme_names_the_targets_of_the_makefile():
    named = {c.split()[1] for c in commands_of(ROOT / "README.md") if c.startswith("make ")}
    assert {"train", "test", "lint", "bench"} <= named


def test_every_file_that_a_guide_links_to_exists():
    links = [(g, l) for g in GUIDES for l in re.findall(r"\]\(([^)#]+)[^)]*\)", g.read_text())]
    assert not [(g, l) for g, l in links if ":" not in l and not (g.parent / l).exists()]


def test_every_path_in_the_readmes_layout_exists():
    rows = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`([^`]+)`", row)]
    assert len(paths) > 10
    assert all((ROOT / path).exists() for path in paths), paths


def run_python(example):
    ended = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_the_readmes_first_training_prints_what_it_says():
    training, *_ = fenced(ROOT / "README.md", "python")
    said, *_ = fenced(ROOT / "README.md", "text")
    assert len([line for line in training.splitlines() if line]) <= 13, "it fits on a screen"
    printed = run_python(training)
    steps = r"step (\d+): loss ([\d.]+)"
    for (step, loss), (expected_step, expected) in zip(
        re.findall(steps, printed), re.findall(steps, said), strict=True
    ):
        assert step == expected_step
        assert float(loss) == pytest.approx(float(expected), rel=0.05, abs=1e-4)


@pytest.mark.slow
def test_the_readmes_listing_of_devices_runs():
    _, example = fenced(ROOT / "README.md", "python")
    assert "cpu:0 ok" in run_python(example)


SITE = ("first-script", "any-device", "profiling")


@pytest.mark.slow
def test_the_scripts_of_the_site_run():
    pages = [fenced(ROOT / "docs" / f"{page}.md", "python") for page in SITE]
    assert all(pages)
    run_python("\n".join(block for page in pages for block in page))


def test_the_sites_pages_exist():
    pages = re.findall(r": ([\w/.-]+\.md)", (ROOT / "mkdocs.yml").read_text())
    assert {f"{page}.md" for page in SITE} < set(pages)
    assert all((ROOT / "docs" / page).exists() for page in pages)


@pytest.mark.slow
def test_the_readmes_device_commands_run(commands):
    said = [c.partition("#")[0] for c in commands_of(ROOT / "README.md") if "bin/hal " in c]
    assert len(said) >= 2
    for command in said:
        ended = commands.hal(*shlex.split(command)[1:])
        assert ended.code == 0, ended.err
        assert "cpu" in ended.out


@pytest.mark.slow
def test_the_scripts_help_names_every_option_that_the_readme_uses(commands):
    text = (ROOT / "README.md").read_text()
    asked = [c for c in commands_of(ROOT / "README.md") if "TRAIN_ARGS=" in c or "train_gpt" in c]
    given = [re.split(r"TRAIN_ARGS=|train_gpt\.py", c, maxsplit=1)[-1] for c in asked]
    options = set(re.findall(r"--[a-z]+", " ".join(given))) - {"--help"}
    assert options
    assert "--device mychip:0" in text
    ended = commands.train("--help")
    assert ended.code == 0
    assert all(option in ended.out for option in {*options, "--device"})
    assert "--help" in ended.out


def test_the_commands_that_continuous_integration_runs_are_targets():
    run = (ROOT / ".ci" / "run").read_text()
    assert set(re.findall(r"^(?:nice )?make ([a-z]+)", run, re.MULTILINE)) == {"lint", "test"}
    assert Path(ROOT / ".ci" / "run").stat().st_mode & 0o111


@pytest.mark.parametrize("red", [(), ("lint",), ("test",), ("lint", "test")], ids=" ".join)
def test_continuous_integration_is_red_where_linters_or_tests_are_and_shows_both(tmp_path, red):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    fake = tmp_path / "make"
    fails = "|".join(red) or "nothing"
    fake.write_text(f"#!/bin/sh\necho made $1\ncase $1 in {fails}) exit 2;; esac\n")
    fake.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        [tmp_path / ".ci" / "run"], env=os.environ | {"PATH": path},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode != 0) is bool(red)
    assert done.stdout.splitlines()[1:] == ["made test", "made lint"]
