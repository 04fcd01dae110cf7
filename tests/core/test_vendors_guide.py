"""What docs/vendors.md tells a vendor to type and to write exists."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hal.core.wrappers.fault_plan import parse_plan
from hal.core.wrappers.named import wrapper
from hal_conformance.case import Level
from hal_conformance.expected import parse_expected
from hal_tools.cli import main
from hal_tools.new.project import PLACES, write_project
from stack.compiler.text.math import ULP
from tests.draw import VENDOR, stream

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/vendors.md").read_text()
FORMATS = (ROOT / "docs/formats.md").read_text()
FRESH_S = 600.0
ALL_S = 3600.0
"""With all cases, which take ten minutes on a busy machine."""
FEW_CASES = 40
MOST_LINES = (120, 220)
"""What a fresh project and one that computes may cost."""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def commands(program):
    lines = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.split("\n")]
    words = [shlex.split(line) for line in lines if line.startswith(program)]
    assert words
    return words


@pytest.mark.parametrize("words", commands("hal "), ids=" ".join)
def test_each_command_is_one_that_the_program_takes(words):
    command = main.get_command(click.Context(main), words[1])
    command.make_context(words[1], words[2:], resilient_parsing=True)
    known = {option for param in command.params for option in param.opts}
    assert {word for word in words[2:] if word.startswith("--")} <= known


def test_the_options_of_pytest_are_those_of_the_suite():
    text = (ROOT / "hal_conformance/pytest_plugin.py").read_text()
    for words in commands("pytest --pyargs"):
        for option in (word for word in words if word.startswith("--hal")):
            assert f'"{option}"' in text


def test_the_options_of_the_example_are_its_own():
    text = (ROOT / "examples/train_gpt.py").read_text()
    for words in commands("python examples"):
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option}"' in text


def test_the_levels_are_those_of_the_suite():
    assert re.findall(r"^\| (L\d) \|", GUIDE, re.MULTILINE) == [str(level) for level in Level]


def test_the_files_are_those_of_a_new_project():
    table = GUIDE.partition("src/hal_plugin_mychip` |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)
    written = {Path(place).name for place in PLACES.values() if place.startswith("src/")}
    assert {*named} == written - {"__init__.py"}


def test_the_wrappers_are_known():
    named = re.findall(r'^\* `"(.*?)"`', GUIDE, re.MULTILINE)
    assert len(named) == 5
    for name in named:
        wrapper(name.replace("PLAN", "hang at launch"))


def test_the_kinds_of_faults_are_all_there_are():
    said = re.search(r"Kinds are (.*?)\.\n", GUIDE, re.DOTALL)[1]
    kinds = re.findall(r"`(.*?)`", said)
    homes = {"out-of-memory": "alloc", "compile": "load", "link-down": "copy"}
    homes |= {"data-corruption": "copy"}
    assert len(kinds) == 11
    for kind in kinds:
        parse_plan(f"{kind} at {homes.get(kind, 'launch')}")


def test_its_toml_is_what_the_suite_reads():
    for block in blocks("toml"):
        [known] = parse_expected(block).failures.values()
        assert known.reason


def test_its_python_runs(capsys):
    for block in blocks("python"):
        if not block.startswith("# src/"):
            exec(block, {})
    shown = capsys.readouterr().out
    assert "reference:0: out-of-memory in alloc" in shown
    assert "out-of-memory at alloc nth 2 device reference:0" in shown


def test_the_errors_of_functions_are_those_of_the_compiler():
    lines = FORMATS.partition("### Errors of functions")[2].splitlines()
    names, _, errors = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")][:3]
    assert dict(zip(names, map(float, errors), strict=True)) == dict(ULP)


def test_the_facts_that_the_compiler_reads_are_all_named():
    table = FORMATS.partition("### What the compiler reads")[2].partition("###")[0]
    named = {*re.findall(r"`limits\.(\w+)`", table), *re.findall(r"`(formats|dtypes)`", table)}
    sources = [path.read_text() for path in (ROOT / "stack/compiler").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r"info\.limits\.(\w+)", text)}
    assert read <= named


def commands_of(section):
    text = GUIDE.partition(f"## {section}.")[2].partition("\n## ")[0]
    return text.partition("```sh\n")[2].partition("```")[0]


def files_of_the_example():
    """The files that section 2 shows, by their place in the project."""
    shown = [block.partition("\n") for block in blocks("python") if block.startswith("# src/")]
    return {place.removeprefix("# "): text for place, _, text in shown}


def lines_said():
    return [
        int(n) for n in re.search(r"project has (\d+) and .* example has (\d+),", GUIDE).groups()
    ]


def test_the_lines_are_as_many_as_it_says(tmp_path):
    folder = write_project("mychip", tmp_path, ())
    said_fresh, said_filled = lines_said()
    assert code_lines(folder) == said_fresh <= MOST_LINES[0]
    for place, text in files_of_the_example().items():
        (folder / place).write_text(text)
    assert code_lines(folder) == said_filled <= MOST_LINES[1]


def code_lines(folder):
    lines = [
        line.strip()
        for path in folder.glob("src/hal_plugin_mychip/*.py")
        for line in path.read_text().splitlines()
    ]
    return sum(1 for line in lines if line and not line.startswith("#"))


@pytest.mark.slow
@pytest.mark.skipif(
    "guide" not in VENDOR and "HAL_VENDOR_CASES" not in os.environ, reason="another run does this"
)
def test_the_first_sections_work_in_a_fresh_environment(tmp_path):
    """Their commands, as they are written, in a shell that knows none of this environment: the
    fresh project, then the example in it. $HAL_VENDOR_CASES sets how many cases each has to pass of
    those that its section names, which are drawn anew for each commit; "all" also trains."""
    checkout = tmp_path / "hal"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    count = os.environ.get("HAL_VENDOR_CASES", str(FEW_CASES))
    starting, filling = commands_of(1), commands_of(2)
    if count != "all":
        some = f"--no-timed --sample {count} --seed {stream('guide').randrange(1 << 30)}"
        starting = starting.replace("--group C,D", f"--group C,D {some}")
        filling = filling.replace("--level L1", f"--level L1 {some}")
        filling = filling.partition("pip install matplotlib")[0]
        assert "--sample" in starting
        assert "--sample" in filling
    fresh = in_a_fresh_shell(tmp_path, checkout, starting)
    assert "green" in fresh
    for place, text in files_of_the_example().items():
        (tmp_path / "hal-plugin-mychip" / place).write_text(text)
    filled = in_a_fresh_shell(tmp_path, checkout, f". .venv/bin/activate\n{filling}")
    assert "level L1 reached" in filled


def in_a_fresh_shell(folder, checkout, commands):
    dropped = ("PYTHON", "VIRTUAL_ENV", "HAL", "COV", "PYTEST")
    fresh = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    fresh |= {"HAL": str(checkout), "HAL_CACHE_DIR": str(folder / "cache")}
    # What is installed is compiled when it is used, and C as fast as it can be: it is used once.
    compiler = folder / "cc"
    compiler.write_text('#!/bin/sh\nexec gcc "$@" -O0 -g0\n')  # behind the flags of the projects
    compiler.chmod(0o755)
    fresh |= {"PIP_QUIET": "1", "PIP_COMPILE": "0", "CC": str(compiler)}
    fresh["PATH"] = os.pathsep.join([os.path.dirname(sys._base_executable), os.defpath])
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=folder,
        env=fresh,
        capture_output=True,
        text=True,
        timeout=ALL_S if os.environ.get("HAL_VENDOR_CASES") == "all" else FRESH_S,
        check=False,
    )
    assert done.returncode == 0, commands + done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout
