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
    # PyTorch has one vendor's word as a name, which the framework's face answers to
    face = {ROOT / "stack/framework" / name for name in ("__init__.py", "platforms.py")}
    for file in (ROOT / "stack").rglob("*.py"):
        text = file.read_text().replace("cuda", "") if file in face else file.read_text()
        assert not (found := vendors.search(text)), f"{file}: {found}"
