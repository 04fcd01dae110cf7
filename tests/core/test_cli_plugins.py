"""Commands that installed distributions add to `hal`."""

import click
import pytest
from click.testing import CliRunner

from hal_tools.cli import main

GOOD = "import click\n\n@click.command()\ndef greet():\n    '''Greet.'''\n    click.echo('hello')\n"


@pytest.fixture
def add(site):
    """Installs a command NAME whose module has this code."""

    def install(name, code, entry="greet"):
        site.install(name, manifest=None, package=f"commands_of_{name}")
        (site.path / f"commands_of_{name}" / "command.py").write_text(code)
        info = site.path / f"hal_plugin_{name}-1.5.dist-info"
        lines = f"[hal.commands]\n{name} = commands_of_{name}.command:{entry}\n"
        (info / "entry_points.txt").write_text(lines)

    return install


def run(*args):
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, args)


def test_a_command_of_a_distribution_runs_and_is_listed(add):
    add("greet", GOOD)
    assert run("greet").stdout == "hello\n"
    assert "Greet." in run("--help").stdout


@pytest.mark.parametrize(
    ("code", "entry", "cause"),
    [
        ("raise OSError('no driver')", "greet", "OSError: no driver"),
        (GOOD, "nothing", "has no attribute 'nothing'"),
        (GOOD, "click", "is no click command"),
    ],
)
def test_a_broken_command_says_why_and_breaks_no_other(add, code, entry, cause):
    add("wrong", code, entry)
    add("greet", GOOD)
    assert "hello" in run("greet").stdout
    assert "Cannot be used" in run("--help").stdout
    done = run("wrong")
    assert done.exit_code == 1
    assert cause in done.stderr
    assert "hal_plugin_wrong".replace("_", "-") in done.stderr


def test_no_command_of_a_plugin_replaces_one_of_hal(add):
    add("devices", GOOD)
    assert isinstance(main.get_command(click.Context(main), "devices"), click.Command)
    assert "hello" not in run("devices").stdout


def test_an_unknown_command_is_refused():
    assert run("nonsense").exit_code == 2
