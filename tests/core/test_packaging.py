"""What the repository says about itself agrees with what is there."""

import re
from importlib.metadata import version
from pathlib import Path

import hal

ROOT = Path(__file__).parents[2]


def test_the_packages_version_is_the_distributions():
    assert hal.__version__ == version("hal-accel")


def test_ci_runs_the_readmes_test_command():
    assert "make test" in (ROOT / ".ci/run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()


def test_the_readmes_python_runs(monkeypatch, registry):
    monkeypatch.setattr("hal.process.registry", lambda: registry)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


def test_the_readmes_links_lead_somewhere():
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^):]+)\)", (ROOT / page).read_text()):
            assert (ROOT / target).exists(), target


def test_the_readmes_layout_is_there():
    table = (ROOT / "README.md").read_text().partition("## Layout")[2]
    for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
        for path in re.findall(r"`(.*?)`", row):
            assert (ROOT / path).exists(), path


def test_the_stack_names_no_vendor():
    vendors = re.compile(
        r"\b(nvidia|cuda|rocm|amd|intel|apple|huawei|ascend|cambricon|sunway)\b", re.I
    )
    for file in (ROOT / "stack").rglob("*.py"):
        assert not (found := vendors.search(file.read_text())), f"{file}: {found}"
