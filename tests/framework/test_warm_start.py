"""A second process takes its plans from the cache, and computes the same bits by them."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
import numpy as np
import stack.framework as ht
from stack.framework import nn, optim
from stack.runtime import opening

compiled, cached = [], opening.cached

def counted(compile, *rest):
    def count(request):
        compiled.append(request)
        return compile(request)
    return cached(count, *rest)

opening.cached = counted
ht.set_default_device("cpu:0")
ht.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
optimizer = optim.AdamW(model.parameters(), lr=1e-2)

@ht.jit
def step(x, wanted):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), wanted)
    loss.backward()
    optimizer.step()
    return loss.detach()

x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)
losses = [float(step(x, x[:, :4])).hex() for _ in range(3)]
print(json.dumps([len(compiled), "stack.compiler.compile" in sys.modules, losses]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.turns]


@pytest.fixture
def begin(tmp_path):
    """Begins a process that trains with the cache of this test."""

    def process(**env):
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"HAL_CACHE_DIR": str(tmp_path)} | env,
        )

    return process


def end(process):
    """How many graphs it compiled, whether it loaded the compiler, and what it computed."""
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(said)


def test_a_second_process_compiles_nothing_and_computes_the_same_bits(begin, tmp_path):
    compiled, _, found = end(begin())
    assert compiled == len(list((tmp_path / "graphs").iterdir())) > 1
    assert end(begin()) == [0, False, found]


def test_what_is_cut_off_is_compiled_again(begin, tmp_path):
    compiled, _, found = end(begin())
    for path in (tmp_path / "graphs").iterdir():
        os.truncate(path, path.stat().st_size // 2)
    assert end(begin()) == [compiled, True, found]
    assert end(begin()) == [0, False, found]


def test_another_fact_of_the_device_leads_to_plans_of_their_own(begin):
    threads = str(os.cpu_count() + 1)
    compiled, _, _ = end(begin())
    again, _, found = end(begin(HAL_CPU_THREADS=threads))
    assert again == compiled
    assert end(begin(HAL_CPU_THREADS=threads)) == [0, False, found]


def test_processes_that_begin_together_share_a_cache(begin):
    processes = [begin() for _ in range(3)]
    first, *others = [end(process)[2] for process in processes]
    assert others == [first, first]
    assert end(begin()) == [0, False, first]
