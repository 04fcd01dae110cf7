"""Code that was written for torch.distributed runs on backend "hal"."""

import json
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tests.bridge import torch_job  # noqa: E402
from tests.launch.running import Folder  # noqa: E402

DEADLINE_S = 500.0


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What every rank of jobs of three and of two found, by name. Loading PyTorch takes longer than
    all of it."""
    jobs = ["3:operations", "2:training,trouble"]
    command = [sys.executable, "-W", "ignore", "-m", "tests.bridge.torch_ranks"]
    done = subprocess.run(
        [*command, str(tmp_path_factory.mktemp("torch")), *jobs],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.turns
def test_every_operation_gives_what_gloo_gives(found):
    assert found["operations"] == [[], [], []]


@pytest.mark.slow
@pytest.mark.turns
def test_models_train_sharded_in_parallel_and_in_stages_as_alone(found):
    # Which loads all of torch.distributed, in the process that runs this and not in each that
    # collects it.
    from tests.bridge import torch_ranks  # noqa: PLC0415

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = torch_ranks.alone()
    torch.set_num_threads(threads)
    first, last = trained = found["training"]
    on_host = [float(loss) for loss in torch_ranks.steps(torch_ranks.small(), "cpu")]
    _check_device([told.pop("device") for told in trained], on_host)
    assert set(last) == {"fsdp", "ddp", "tensor_parallel", "pipeline"}
    for name, losses in last.items():
        assert losses == pytest.approx(alone, rel=1e-6, abs=0), name
    assert {name: first[name] == last[name] for name in last} == {
        "fsdp": True, "ddp": True, "tensor_parallel": True, "pipeline": False,
    }  # fmt: skip


def _check_device(found, alone):
    """Tensors of the device are exchanged; `alone` are the losses of one process on the host."""
    for rank, told in enumerate(found):
        for name in ("ddp", "fsdp"):
            assert told[name] == pytest.approx(alone, rel=1e-6, abs=0), name
        assert told["moved"] == [
            [[0.0, 2.0], [1.0, 3.0]],
            [[1.0, 3.0], [2.0, 4.0]],
            [[1.0 + 2 * rank, 5.0 + 2 * rank]],
            [[0.0 + rank, 2.0 + rank], [2.0, 4.0]],
        ]


@pytest.mark.slow
@pytest.mark.turns
def test_futures_are_open_until_all_have_come_and_wrong_calls_are_refused(found):
    for rank, told in enumerate(found["trouble"]):
        assert told["futures"] == {
            "was_done": [False] * 3 * rank, "sums": [4.0, 2.0, 0.0], "chained": 4.0,
            "gaps": [[rank, 1.0]] * 2,
        }  # fmt: skip
        assert told["twice"] == [2 * (1.0 + 2.0) + 20.0] * 2
        assert told["late"] == [[rank, 1.0]] * 2
        assert "no or of bits of float32" in told["bits"]
        assert "not by RedOpType.PREMUL_SUM" in told["factors"]
        assert "of float32, the destination int32" in told["types"]
        assert "a tag from 0 to 2**31 - 1, not -3" in told["tag"]
        assert "on meta" in told["meta"]
        assert re.search(r"rank 1 makes call \d+: all-reduce \(sum\) of 7 f32", told["backward"])
        for said in (told["differ"], told["future"]):
            assert re.search(r"rank 0 makes call \d+: all-reduce \(sum\) of 3 f32", said)
            assert re.search(r"rank 1 makes call \d+: all-reduce \(sum\) of 4 f32", said)


@pytest.mark.slow
@pytest.mark.turns
def test_ranks_of_hal_run_need_to_tell_torch_nothing(tmp_path):
    done = Folder(tmp_path).run("-n", 2, "--devices", "cpu:0", torch_job.__file__)
    assert (done.code, done.err) == (0, [])
    for line in done.out:
        rank, _, said = line[1:].partition("] ")
        place, *met = json.loads(said)
        assert place == [rank, "2", rank, "2"]
        for everyone, few, count, there, missed in met:
            assert (everyone, few, count, there) == (2.0, 1.0, 2, False)
            assert re.search("never.*within 0.001 s", missed)
