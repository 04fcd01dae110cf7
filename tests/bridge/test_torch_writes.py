"""Writes to parts of tensors of PyTorch's device "hal", beside the CPU's."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from stack.bridge import torch as bridge
from tests.draw import stream

bridge.register()
ROWS, WIDTH = 12, 5
DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.uint8)


class Both:
    """A program on the device and on the CPU: buffers whose parts are written, while others hold
    what they were or share their memory."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.dtype = self.rng.choice(DTYPES)
        self.devices = "hal", "cpu"
        self.buffers: list[list[torch.Tensor]] = [[], []]
        self.held: list[list[torch.Tensor]] = [[], []]
        kinds = [lambda d: torch.zeros(ROWS, WIDTH, dtype=self.dtype, device=d)]
        kinds.append(lambda d: torch.full((ROWS, WIDTH), 1, dtype=self.dtype, device=d))
        data = self.data(ROWS)
        kinds.append(lambda d: data.clone().to(d))
        for _ in range(2):
            make = self.rng.choice(kinds)
            for i, device in enumerate(self.devices):
                self.buffers[i].append(make(device))

    def data(self, *shape: int) -> torch.Tensor:
        count = int(np.prod((*shape, WIDTH)))
        numbers = [self.rng.randint(0, 9) for _ in range(count)]
        return torch.tensor(numbers).reshape(*shape, WIDTH).to(self.dtype)

    def write(self) -> None:
        rng = self.rng
        kind = rng.choice(["number", "row", "host", "zero", "column", "other", "computed", "at"])
        which, row, column = rng.randrange(2), rng.randrange(ROWS), rng.randrange(WIDTH)
        end, number = rng.randint(row + 1, ROWS), rng.choice([0, 1, True, 3])
        number = bool(number) if self.dtype is torch.bool else number
        data = self.data()
        for i, device in enumerate(self.devices):
            b, other = self.buffers[i][which], self.buffers[i][which - 1]
            match kind:
                case "number":
                    b[row, column:] = number
                case "row":
                    b[row] = data.to(device)
                case "host":
                    b[row : row + 1].copy_(data[None])
                case "zero":
                    b[row:end].zero_()
                case "column":
                    b[row:, column] = number
                case "other":
                    b[row] = other[row - 1]
                case "computed":
                    b[row] = (other[row] + data.to(device)).to(self.dtype)
                case "at":
                    b[torch.tensor([row]).to(device)] = data.to(device)

    def hold(self) -> None:
        kind, which = self.rng.choice(["clone", "view", "sum"]), self.rng.randrange(2)
        for i in range(2):
            b = self.buffers[i][which]
            made = {
                "clone": b.clone,
                "view": lambda b=b: b[3:],
                "sum": lambda b=b: b.float().sum(0),
            }
            self.held[i].append(made[kind]())

    def look(self) -> None:
        which, row, column = (self.rng.randrange(n) for n in (2, ROWS, WIDTH))
        parts = [lambda b: b.float().sum(), lambda b: b[row, column], lambda b: b[row:]]
        part = self.rng.choice(parts)
        mine, other = (part(b[which]).tolist() for b in self.buffers)
        assert mine == other

    def check(self) -> None:
        for mine, other in zip(
            *(a + b for a, b in zip(self.held, self.buffers, strict=True)), strict=True
        ):
            torch.testing.assert_close(mine.cpu(), other, rtol=0, atol=0)


SEED = stream("torch writes").randrange(10**6)


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_random_writes_agree_with_the_cpu(seed):
    both = Both(seed)
    for _ in range(24):
        both.rng.choice([both.write, both.write, both.look, both.hold])()
    both.check()


def test_a_loop_of_writes_compiles_nothing():
    """As that which makes a mask of lengths: others are other writes, and no other program."""

    def masked(lengths: list[int]) -> Any:
        mask = torch.zeros(len(lengths), 16, device="hal")
        for row, length in enumerate(lengths):
            mask[row, :length] = 1
        return mask.sum(1).tolist()

    for lengths in ([3, 5, 7], [4, 6, 8]):
        assert masked(lengths) == lengths
    before = bridge.stats()["hal:0"]
    assert masked([9, 2, 16]) == [9, 2, 16]
    after = bridge.stats()["hal:0"]
    assert after["compiled"] == before["compiled"]
    assert after["generalised"] == before["generalised"]


def test_values_that_do_not_fit_a_part_are_refused():
    x = torch.zeros(4, 5, device="hal")
    for value in (torch.zeros(3, device="hal"), torch.ones(3).to("hal")):
        with pytest.raises(RuntimeError, match="3"):
            x[1].copy_(value)
    x[1].copy_(torch.full((1,), 2.0, device="hal"))
    assert x.sum().item() == 10


@pytest.mark.parametrize("number", [1.5, -2.5, 3.0, 7])
def test_numbers_become_whole_as_on_the_cpu(number):
    made = [torch.zeros(3, dtype=torch.int64, device=device) for device in ("hal", "cpu")]
    for x in made:
        x[1] = number
        x[2:].fill_(number)
    assert made[0].tolist() == made[1].tolist()
