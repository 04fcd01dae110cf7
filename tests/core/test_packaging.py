"""What the repository says about itself agrees with what is there."""

import tomllib
from pathlib import Path

import hal

ROOT = Path(__file__).parents[2]


def test_the_packages_version_is_the_distributions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert hal.__version__ == project["version"]


def test_ci_runs_the_readmes_test_command():
    assert "make test" in (ROOT / ".ci/run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()
