"""Random programs of views, changes in place and gradients, run by the framework and by PyTorch.

`python -m tests.framework.alias_programs COUNT SEED` runs many of them.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import stack.framework as ht
from stack.framework.devices import default_engine
from tests.framework.conftest import InterpretedEngine

DECIDED = (
    "modified by an inplace operation",
    "refer to a single memory location",
    "single memory location",
    "A view was created in no_grad mode",
    "is a view and its base or another view of its base has been modified inplace",
    "view size is not compatible",
)
"""Errors of PyTorch's where the framework has a value; docs/coming-from-pytorch.md says which."""


def is_decided(error: Exception) -> bool:
    return any(words in str(error) for words in DECIDED)


class Ended(Exception):
    """PyTorch refuses what the framework by decision does not: the programs part here."""


class Program:
    """One program, drawn while it runs, from what the variables are in PyTorch."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ours: list[Any] = []
        self.theirs: list[Any] = []
        self.text: list[str] = []
        self.hidden = False  # `.data` was used

    def run(self, length: int) -> int:
        """How many statements both have run. Raises AssertionError where they differ."""
        kinds = [self.create, self.view, self.view, self.view, self.compute, *[self.change] * 4]
        kinds += [self.assign, self.detach, self.back, self.flag, self.look, self.copied]
        self.create()
        for done in range(length):
            try:
                self.rng.choice(kinds)()
                if done == length - 1:
                    self.check()
            except Ended:
                return done
            except RuntimeError as error:  # PyTorch's, where it looks at requires_grad
                if not is_decided(error):
                    raise
                return done
        return length

    def do(self, text: str) -> bool:
        """Run a statement, "NAMES = expression" on the variables `v`, in both. Whether it ran."""
        self.text.append(text)
        self.hidden |= ".data" in text
        results: list[Any] = []
        for api, variables in ((torch, self.theirs), (ht, self.ours)):
            space = {"api": api, "v": variables, "new": [], "copy": copy, "np": np}
            try:
                exec(text, space)
                results.append(space["new"])
            except (RuntimeError, TypeError, IndexError, ValueError) as error:
                results.append(error)
        theirs, ours = results
        if isinstance(theirs, Exception) and not isinstance(ours, Exception):
            if is_decided(theirs) or self.is_odd(theirs, text):
                raise Ended
            assert ours is theirs, f"PyTorch refuses: {theirs}"
        if isinstance(ours, Exception):
            if "lie in one place" in str(ours):  # PyTorch fills expanded tensors
                raise Ended
            assert isinstance(theirs, Exception), f"the framework refuses: {ours}"
            return False
        self.theirs += theirs
        self.ours += ours
        return True

    def is_odd(self, error: Exception, text: str) -> bool:
        """Whether PyTorch calls a view a leaf: after a change of its base under no_grad(), or until
        somebody asks for its history, after which it takes the statement."""
        if "a leaf Variable that requires grad" not in str(error):
            return False
        if [t for t in self.theirs if t._is_view() and t.requires_grad and t.is_leaf]:
            return True
        try:
            exec(text, {"api": torch, "v": self.theirs, "new": [], "copy": copy, "np": np})
        except RuntimeError:
            return False
        return True

    def pick(self, wanted: Callable[[torch.Tensor], bool] = lambda t: True) -> int | None:
        found = [i for i, t in enumerate(self.theirs) if wanted(t)]
        return self.rng.choice(found) if found else None

    def numbers(self, shape: Any) -> str:
        n = int(np.prod(shape))
        values = [self.rng.choice([-2, -1, 0, 1, 2, 3]) / 2 for _ in range(n)]
        return f"api.tensor(np.array({values}, np.float32).reshape({tuple(shape)}))"

    def create(self) -> None:
        shape = [self.rng.choice([1, 2, 2, 3, 4]) for _ in range(self.rng.choice([1, 2, 2, 3]))]
        grad = self.rng.choice(["", ".requires_grad_()"])
        self.do(f"new.append({self.numbers(shape)}{grad})")

    def view(self) -> None:
        i = self.pick()
        t = self.theirs[i]
        rank = t.ndim
        dims = list(range(rank))
        self.rng.shuffle(dims)
        choices = [f".permute({dims})", ".unsqueeze(0)", ".squeeze()", ".flatten()", "[None]"]
        choices += [f".reshape({self.shape_of(t.numel())})", f".view({self.shape_of(t.numel())})"]
        choices += [".expand(2, *v[I].shape)", ".mT" if rank > 1 else "[:]", "[...]"]
        if rank:
            d = self.rng.randrange(rank)
            n = t.shape[d]
            choices += [f".transpose({d}, 0)", f".chunk(2, {d})[-1]", f".unbind({d})[0]"]
            choices += [f".split([{n // 2}, {n - n // 2}], {d})[1]", f"[{self.place(t)}]"] * 2
        chosen = self.rng.choice(choices).replace("I", str(i))
        line = f"new.append(v[{i}]{chosen})"
        if self.rng.random() < 0.15 and not t.requires_grad:
            line = f"with api.no_grad(): {line}"
        self.do(line)

    def shape_of(self, n: int) -> tuple[int, ...]:
        shape = []
        while n > 1 and self.rng.random() < 0.7:
            d = self.rng.choice([k for k in range(1, n + 1) if n % k == 0])
            shape.append(d)
            n //= d
        return (*shape, n)

    def place(self, t: torch.Tensor) -> str:
        items = []
        for n in t.shape[: self.rng.randint(1, t.ndim)]:
            lo = self.rng.randrange(n)
            items.append(
                self.rng.choice(
                    [str(lo), str(lo - n), f"{lo}:", f":{lo + 1}", f"{lo}:{n}:2", "::2", ":"]
                )
            )
        return ", ".join(items)

    def compute(self) -> None:
        i = self.pick()
        j = self.pick(lambda t: t.shape == self.theirs[i].shape)
        choices = [f"v[{i}] * v[{j}]", f"v[{i}] + v[{j}]", f"v[{i}] * 0.5", f"v[{i}].clone()"]
        choices += [f"(v[{i}] * 0.3).exp()", f"v[{i}].sum()", f"v[{i}] - 1"]
        expression = self.rng.choice([*choices, f"v[{i}].contiguous()"])
        # PyTorch's results keep the operands' order of axes; here they are in row-major order.
        self.do(f"r = {expression}; new.append(r if r.is_contiguous() else r.contiguous())")

    def change(self) -> None:
        i = self.pick()
        t = self.theirs[i]
        j = self.pick(lambda s: s.shape == t.shape and not self.is_read_late(s, t))
        choices = [f"v[{i}].add_(1)", f"v[{i}].mul_(v[{j}])", f"v[{i}].copy_(v[{j}])"]
        choices += [f"v[{i}].zero_()", f"v[{i}].sub_(v[{j}])", f"v[{i}].fill_(0.5)"]
        choices += [f"v[{i}].masked_fill_(v[{j}] > 0, 0.25)", f"v[{i}].data.mul_(0.5)"]
        if t.ndim:
            place = self.place(t)
            choices += [f"v[{i}][{place}] = 2", f"v[{i}][{place}] += 1"]
            choices += [f"v[{i}][{place}] = v[{j}][{place}]", f"v[{i}][{place}].zero_()"]
        line = self.rng.choice(choices)
        if self.rng.random() < (0.6 if t.requires_grad else 0.2):
            line = f"with api.no_grad(): {line}"
        self.do(line)

    def is_read_late(self, source: torch.Tensor, changed: torch.Tensor) -> bool:
        """Whether PyTorch, without an error, reads elements of the source after it has changed
        them."""
        one = source.untyped_storage().data_ptr() == changed.untyped_storage().data_ptr()
        return one and any(
            n > 1 and not s for n, s in zip(source.shape, source.stride(), strict=True)
        )

    def assign(self) -> None:
        i = self.pick(lambda t: t.is_contiguous() and self.is_alone(t))
        if i is not None:
            shape = self.theirs[i].shape
            j = self.pick(lambda s: s.shape == shape and s.is_contiguous())
            self.do(self.rng.choice([f"v[{i}].data = v[{j}].data", f"v[{i}].data = v[{j}]"]))

    def is_alone(self, t: torch.Tensor) -> bool:
        at = [s.untyped_storage().data_ptr() for s in self.theirs]
        return at.count(t.untyped_storage().data_ptr()) == 1

    def detach(self) -> None:
        i = self.pick()
        self.do(self.rng.choice([f"new.append(v[{i}].detach())", f"new.append(v[{i}].data)"]))

    def flag(self) -> None:
        # PyTorch's views that are older than the flag are leaves of their own, until they change.
        i = self.pick(lambda t: t.is_leaf and self.is_alone(t))
        if i is not None:
            self.do(f"v[{i}].requires_grad_()")

    def back(self) -> None:
        i = self.pick(lambda t: t.requires_grad and not t.is_leaf)
        if i is None or self.hidden:  # PyTorch's gradient would be that of other values
            return
        if self.do(f"v[{i}].sum().backward(retain_graph=True)"):
            self.check()
            if self.rng.random() < 0.5:
                self.do("for x in v: x.grad = None")

    def look(self) -> None:
        i = self.pick()
        close(self.ours[i], self.theirs[i])

    def copied(self) -> None:
        found = [i for i, t in enumerate(self.theirs) if t.is_leaf]
        if len(found) > 1:
            i, j = self.rng.sample(found, 2)
            self.do(f"new.extend(copy.deepcopy([v[{i}], v[{j}]]))")

    def check(self) -> None:
        for i, (ours, theirs) in enumerate(zip(self.ours, self.theirs, strict=True)):
            close(ours, theirs)
            grad = theirs.grad if theirs.is_leaf else None
            if grad is not None and not grad.any() and ours.grad is None:
                grad = None  # through what was filled with a number
            facts = (ours.requires_grad, ours.is_leaf, ours.grad is not None)
            expected = (theirs.requires_grad, theirs.is_leaf, grad is not None)
            assert facts == expected, f"v[{i}] (requires_grad, is_leaf, grad): {facts}, {expected}"
            if grad is not None:
                close(ours.grad, grad)


def close(ours: Any, theirs: torch.Tensor) -> None:
    expected = theirs.detach().numpy()
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert ours.shape == expected.shape


def run(seed: int, length: int = 25) -> int:
    """Run the seed's program. Raises AssertionError with its text."""
    program = Program(seed)
    try:
        with np.errstate(all="ignore"):
            return program.run(length)
    except Exception as error:
        text = "\n".join(program.text)
        raise AssertionError(f"program {seed}:\n{text}\n{error!r}") from error


def main() -> None:
    count, seed = (int(a) for a in (*sys.argv[1:], "100", "0")[:2])
    failed = statements = 0
    with default_engine("interpreter:0", InterpretedEngine()):
        for i in range(seed, seed + count):
            try:
                statements += run(i)
            except AssertionError as error:
                failed += 1
                if failed <= 3:
                    sys.stderr.write(f"{error}\n")
    sys.stderr.write(f"{count} programs, {statements} statements, {failed} differ\n")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
