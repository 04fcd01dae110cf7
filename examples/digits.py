"""Tell handwritten digits apart by convolutions, on any device.

    pip install 'hal-accel[cpu,examples]'
    python examples/digits.py --device cpu:0

The digits are the 1797 images of 8 x 8 pixels that scikit-learn ships. The picture shows the loss
and images that the training has not seen, each with the answer; wrong ones are red.
"""

from __future__ import annotations

import numpy as np
import small
from matplotlib.figure import Figure

import stack.framework as ht
from stack.framework import nn, optim
from stack.framework.nn import functional as F

BATCH = 64
TESTED = 297
"""Images that are kept for the test."""
SHOWN = 40


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (1797, 1, 8, 8), float32 from -1 to 1, and labels (1797,), int64. Raises DataError
    where scikit-learn is not installed."""
    try:
        from sklearn import datasets  # noqa: PLC0415  (only two of the examples need it)
    except ModuleNotFoundError as error:
        raise small.DataError(
            f"the digits come with scikit-learn, and there is no module {error.name}: "
            "pip install 'hal-accel[examples]'"
        ) from None
    found = datasets.load_digits()
    images = (found.images / 8 - 1).astype(np.float32)
    return images[:, None], found.target.astype(np.int64)


class Net(nn.Module):
    """Logits (B, 10) for images (B, 1, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.2),
        )
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, images: ht.Tensor) -> ht.Tensor:
        return self.head(ht.flatten(self.features(images), 1))


def run(options: small.Options) -> None:
    images, labels = (ht.from_numpy(values) for values in load_digits())
    seen, known = images[:-TESTED], labels[:-TESTED]
    unseen, wanted = images[-TESTED:], labels[-TESTED:]
    model = Net()
    optimizer = optim.Adam(model.parameters(), lr=2e-3)

    @ht.jit
    def step() -> ht.Tensor:
        rows = ht.randint(0, len(seen), (BATCH,))
        loss = F.cross_entropy(model(seen[rows]), known[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = small.train(options, step)
    model.eval()
    with ht.no_grad():
        answers = model(unseen).argmax(dim=1)
    right = (answers == wanted).float().mean().item()
    print(f"{right:.1%} of {TESTED} images that it has not seen are right")
    draw(options, losses, unseen.numpy(), answers.numpy(), wanted.numpy())


def draw(
    options: small.Options,
    losses: list[float],
    images: np.ndarray,
    answers: np.ndarray,
    wanted: np.ndarray,
) -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subfigures(1, 2)
    axes = left.subplots()
    axes.plot(range(1, len(losses) + 1), losses)
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    for axes, image, answer, label in zip(
        right.subplots(5, SHOWN // 5).flat, images, answers, wanted, strict=False
    ):
        axes.imshow(image[0], cmap="gray_r")
        axes.set_title(answer, color="black" if answer == label else "red", fontsize=9)
        axes.axis("off")
    small.save(figure, options)


if __name__ == "__main__":
    small.main(__doc__, 300, run)
