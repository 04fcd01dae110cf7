"""What a person can get wrong: a clear error on one screen, and nothing is lost."""

import re
import resource
import sys
from pathlib import Path

import pytest

import stack.framework as ht
from tests.journeys.conftest import TEXT, Commands

FULL_NBYTES = 40_000
"""A limit to the size of files that a checkpoint of the tiny model exceeds."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, environment):
    """A folder with a checkpoint after two steps."""
    commands = Commands(tmp_path_factory.mktemp("trained"), environment)
    ended = commands.train("--steps", 2)
    assert ended.code == 0, ended.err
    return commands.folder / "out"


@pytest.fixture
def checkpoint(trained, tmp_path):
    """A copy of that checkpoint where the test's own commands look for it."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "checkpoint.safetensors"
    path.write_bytes((trained / path.name).read_bytes())
    return path


@pytest.mark.slow
def test_the_text_is_missing(commands):
    commands.train(text="no/such/text").assert_clear_error("no/such/text", "No such file")


@pytest.mark.slow
def test_the_text_is_empty(commands, tmp_path):
    (tmp_path / "empty").write_text("")
    commands.train(text="empty").assert_clear_error("0 bytes", "--text")


@pytest.mark.slow
def test_a_folder_of_unequal_texts_is_too_short_for_one_of_its_parts(commands, tmp_path):
    (tmp_path / "texts").mkdir()
    for i in range(10):
        (tmp_path / "texts" / f"{i}.txt").write_text("long " * 100 if i == 9 else "")
    commands.train(text="texts").assert_clear_error("8 bytes to train on and 500 to validate on")


@pytest.mark.slow
def test_the_folder_for_results_is_a_file(commands, tmp_path):
    (tmp_path / "out").write_text("precious")
    commands.train().assert_clear_error("--out out is a file")
    assert (tmp_path / "out").read_text() == "precious"


@pytest.mark.slow
def test_the_device_is_unknown_and_an_older_log_stays(commands, tmp_path):
    (tmp_path / "log.json").write_text("precious")
    ended = commands.train("--device", "nochip:0", "--json", "log.json")
    ended.assert_clear_error("no plugin 'nochip'", "known devices: cpu:0", "What to do:")
    assert (tmp_path / "log.json").read_text() == "precious"


@pytest.mark.slow
def test_the_folder_of_the_trace_is_missing(commands):
    ended = commands.train("--trace", "nowhere/trace.json")
    ended.assert_clear_error("nowhere/trace.json", "create it")


@pytest.mark.slow
def test_there_is_no_checkpoint_to_resume(commands):
    ended = commands.train("--resume")
    ended.assert_clear_error("there is no checkpoint out/checkpoint.safetensors")


@pytest.mark.slow
def test_the_checkpoint_to_resume_is_cut_short(commands, checkpoint):
    whole = checkpoint.read_bytes()
    cut = whole[: len(whole) // 2]
    checkpoint.write_bytes(cut)
    ended = commands.train("--resume")
    ended.assert_clear_error("out/checkpoint.safetensors", f"{len(cut):,} bytes", "cut short")
    assert checkpoint.read_bytes() == cut


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "safetensors", "another model"])
def test_the_checkpoint_to_resume_is_foreign(commands, checkpoint, kind):
    if kind == "text":
        checkpoint.write_text("these are not the weights that you are looking for")
        words = ("is not a whole safetensors checkpoint",)
    elif kind == "safetensors":
        checkpoint.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
        words = ("not a checkpoint written by `save`",)
    else:
        ht.save(checkpoint, {"config": {"width": 7}})
        words = ("holds another model", "'width': 7", "'width': 16")
    before = checkpoint.read_bytes()
    commands.train("--resume").assert_clear_error("out/checkpoint.safetensors", *words)
    assert checkpoint.read_bytes() == before


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_NBYTES, FULL_NBYTES))


@pytest.mark.slow
def test_the_disk_is_full_when_a_checkpoint_is_written(commands, checkpoint):
    before = checkpoint.read_bytes()
    assert len(before) > FULL_NBYTES
    ended = commands.train("--resume", "--steps", 3, preexec_fn=limit_file_size)
    ended.assert_clear_error(
        "cannot write the checkpoint out/checkpoint.safetensors",
        "File too large",
        "the older file is unchanged",
    )
    assert checkpoint.read_bytes() == before
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]
    assert ht.load(checkpoint)["step"] == 2


@pytest.mark.slow
def test_the_device_is_out_of_memory(commands):
    ended = commands.train("--steps", 2, env={"HAL_CPU_MEMORY": "150000"})
    ended.assert_clear_error("OutOfMemory: cpu:0 cannot give", "are free on the device")
    assert re.search(r"cannot give [\d,]+ bytes for (array|result|temporaries)", ended.err)
    assert re.search(r"the largest holders: [\d,]+ \w+", ended.err)


USER = """
import numpy as np
import stack.framework as ht
from stack.framework import nn

linear, embedding = nn.Linear(4, 8), nn.Embedding(4, 2)

def forward(x):
    return linear(x).sum()

{call}
"""


@pytest.mark.parametrize(
    ("call", "line", "words"),
    [
        ("forward(ht.ones(2, 5))", 9, ["linear: ", "float32[2, 5]", "float32[8, 4]"]),
        ("ht.jit(forward)(np.ones((2, 5), np.float32))", 9, ["linear: ", "float32[2, 5]"]),
        ("ht.ones(2, 3) @ ht.ones(4, 3)", 11, ["matmul: ", "float32[2, 3] @ float32[4, 3]"]),
        ("ht.ones(2) + ht.ones(3)", 11, ["add: ", "[2] and [3] do not broadcast"]),
        ("embedding(ht.ones(3))", 11, ["embedding: ", "integers, got float32[3]"]),
    ],
)
def test_operands_do_not_fit(call, line, words):
    program = compile(USER.format(call=call), "user.py", "exec")
    with pytest.raises(ht.TensorError) as caught:
        exec(program, {})
    error, where = str(caught.value).splitlines()
    assert error.startswith(words[0])
    assert all(word in error for word in words)
    assert where == f"  called at user.py:{line}"


BROKEN_MODEL = """
import sys
sys.path.insert(0, {folder!r})
import tiny

def forward(self, tokens):
    return self.head(self.token(tokens)[:, :, :5])

tiny.train_gpt.GPT.forward = forward
sys.exit(tiny.train_gpt.main())
"""


@pytest.mark.slow
def test_a_model_whose_layers_do_not_fit_ends_training_on_one_screen(commands, tmp_path):
    user = tmp_path / "user.py"
    user.write_text(BROKEN_MODEL.format(folder=str(Path(__file__).parent)))
    ended = commands.ended(commands.start(sys.executable, user, "--text", TEXT))
    ended.assert_clear_error("TensorError: linear:", "float32[2, 16, 5]", f"called at {user}:7")
