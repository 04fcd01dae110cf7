"""`import hal` is light: it brings in no vendor module and no array library."""

import json
import subprocess
import sys

import pytest

import hal

HEAVY = ("numpy", "ml_dtypes", "torch", "llvmlite", "cffi", "click", "rich", "importlib.metadata")


def modules_after(code):
    """The names of the modules that a fresh interpreter has after running the code."""
    script = f"import sys, json; before = set(sys.modules)\n{code}\n"
    script += "print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=60
    )
    return json.loads(done.stdout)


def test_import_and_discovery_bring_in_nothing_heavy():
    names = modules_after("import hal\nhal.registry()")
    assert "hal.core.discovery.registry" in names
    assert not [n for n in names if n in HEAVY or n.startswith(("hal_plugin_", "stack"))]
    assert "hal.core.wrappers.validation" not in names, "a wrapper is loaded when it is named"


def test_the_framework_brings_in_what_it_saves_and_loads_with_when_that_is_used():
    first = "import stack.framework as ht\n"
    rare = {"importlib.metadata", "zipfile", "multiprocessing", "stack.storage.gguf"}
    messages = {"difflib"}  # which every `from module import` asked for the nearest name
    assert not (rare | messages) & set(modules_after(first))
    used = "ht.load, ht.poisson, ht.checkpoint.save, ht.distributions.Normal, ht.utils.data.Dataset"
    assert rare <= set(modules_after(first + used))


def test_every_public_name_is_loaded_when_it_is_used():
    assert all(getattr(hal, name) is not None for name in hal.__all__)
    assert set(hal.__all__) == set(hal._HOME)
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        _ = hal.opne
