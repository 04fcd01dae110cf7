"""What a person can get wrong: a clear error on one screen, and nothing is lost."""

import re
import resource
import shutil
import sys
from pathlib import Path

import pytest

import stack.framework as ht
from stack.framework.checkpoints import TreeCheckpoints
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
    """The folder of that checkpoint, copied to where the test's own commands look for it."""
    shutil.copytree(trained, tmp_path / "out")
    return tmp_path / "out" / "checkpoints" / "step-000000000002"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.turns
def test_the_text_is_missing(commands):
    commands.train(text="no/such/text").assert_clear_error("no/such/text", "No such file")


@pytest.mark.slow
@pytest.mark.turns
def test_the_text_is_empty(commands, tmp_path):
    (tmp_path / "empty").write_text("")
    commands.train(text="empty").assert_clear_error("0 bytes", "--text")


@pytest.mark.slow
@pytest.mark.turns
def test_a_folder_of_unequal_texts_is_too_short_for_one_of_its_parts(commands, tmp_path):
    (tmp_path / "texts").mkdir()
    for i in range(10):
        (tmp_path / "texts" / f"{i}.txt").write_text("long " * 100 if i == 9 else "")
    commands.train(text="texts").assert_clear_error("8 bytes to train on and 500 to validate on")


@pytest.mark.slow
@pytest.mark.turns
def test_the_strategy_has_a_line_that_is_none(commands, tmp_path):
    (tmp_path / "mine.txt").write_text("axis data 1\n  paramters rows\n")
    ended = commands.train("--strategy", "mine.txt")
    ended.assert_clear_error("mine.txt: line 2 of the strategy is 'paramters rows'", "1f1b, ")


@pytest.mark.slow
@pytest.mark.turns
def test_the_budget_cannot_be_met_and_the_least_that_is_told_can(commands):
    commands.train("--memory", "much").assert_clear_error("'much' is no number of MiB above 0")
    ended = commands.train("--memory", "0.01")
    ended.assert_clear_error("at least, of which", "with all computed again")
    (least,) = re.findall(r"\(([0-9.]+) MiB\)", " ".join(ended.err.split()))
    assert commands.train("--memory", least, "--steps", 1).code == 0


@pytest.mark.slow
@pytest.mark.turns
def test_the_folder_for_results_is_a_file(commands, tmp_path):
    (tmp_path / "out").write_text("precious")
    commands.train().assert_clear_error("--out out is a file")
    assert (tmp_path / "out").read_text() == "precious"


@pytest.mark.slow
@pytest.mark.turns
def test_the_device_is_unknown_and_an_older_log_stays(commands, tmp_path):
    (tmp_path / "log.json").write_text("precious")
    ended = commands.train("--device", "nochip:0", "--json", "log.json")
    ended.assert_clear_error("no plugin 'nochip'", "known devices: cpu:0", "What to do:")
    assert (tmp_path / "log.json").read_text() == "precious"


@pytest.mark.slow
@pytest.mark.turns
def test_the_folder_of_the_trace_is_missing(commands):
    ended = commands.train("--trace", "nowhere/trace.json")
    ended.assert_clear_error("nowhere/trace.json", "create it")


@pytest.mark.slow
@pytest.mark.turns
def test_there_is_no_checkpoint_to_resume(commands):
    ended = commands.train("--resume")
    ended.assert_clear_error("there is no whole checkpoint in file:", "out/checkpoints", "none")


@pytest.mark.slow
@pytest.mark.turns
def test_the_checkpoint_to_resume_is_cut_short(commands, checkpoint):
    file = checkpoint / "model.safetensors"
    cut = file.read_bytes()[:5000]
    file.write_bytes(cut)
    ended = commands.train("--resume")
    ended.assert_clear_error("step-000000000002/model.safetensors", "bytes are cut off")
    assert file.read_bytes() == cut


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("kind", ["foreign manifest", "another model", "another text"])
def test_the_checkpoint_to_resume_is_foreign(commands, checkpoint, kind):
    more = {}
    if kind == "foreign manifest":
        (checkpoint / "manifest.json").write_text("these are not the weights you are looking for")
        words = ("manifest.json is not what was written",)
    elif kind == "another model":
        with TreeCheckpoints(checkpoint.parent) as checkpoints:
            checkpoints.save(3, {"config": {"width": 7}})
        words = ("step 3 of out/checkpoints", "another model", "'width': 7", "'width': 16")
    else:
        more["text"] = str(Path(shutil.__file__))
        words = ("step 2 of out/checkpoints", "a training on another text", "--out")
    before = contents(checkpoint)
    commands.train("--resume", **more).assert_clear_error(*words)
    assert contents(checkpoint) == before


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_NBYTES, FULL_NBYTES))


@pytest.mark.slow
@pytest.mark.turns
def test_the_disk_is_full_when_a_checkpoint_is_written(commands, checkpoint):
    before = contents(checkpoint)
    assert len(before["model.safetensors"]) > FULL_NBYTES
    ended = commands.train("--resume", "--steps", 3, preexec_fn=limit_file_size)
    ended.assert_clear_error(
        "step-000000000003/model.safetensors", "File too large", "older checkpoints are unchanged"
    )
    assert contents(checkpoint) == before
    assert [path.name for path in checkpoint.parent.glob("step-*")] == [checkpoint.name]


@pytest.mark.slow
@pytest.mark.turns
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
@pytest.mark.turns
def test_a_model_whose_layers_do_not_fit_ends_training_on_one_screen(commands, tmp_path):
    user = tmp_path / "user.py"
    user.write_text(BROKEN_MODEL.format(folder=str(Path(__file__).parent)))
    ended = commands.ended(commands.start(sys.executable, user, "--text", TEXT))
    ended.assert_clear_error("TensorError: linear:", "float32[2, 16, 5]", f"called at {user}:7")
