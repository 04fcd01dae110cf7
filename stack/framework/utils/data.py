"""Datasets, the order in which their samples come, and batches of them, with PyTorch's names.

Samples are loaded in this process, or by `num_workers` others; `stack.storage.data` reads large
data sets from many files, and goes on where a training stopped.
"""

from __future__ import annotations

import bisect
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, repeat
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from hal.core.facts import dataclass
from stack.framework.create import tensor
from stack.framework.errors import absent
from stack.framework.functions import stack
from stack.framework.random import Generator, rand, randint, randperm
from stack.framework.tensor import Tensor
from stack.framework.utils.workers import WorkerInfo as WorkerInfo
from stack.framework.utils.workers import Workers
from stack.framework.utils.workers import get_worker_info as get_worker_info

T = TypeVar("T")


class Dataset(Generic[T]):
    """Samples by number: subclasses define `__getitem__` and `__len__`."""

    def __getitem__(self, index: int) -> T:
        raise NotImplementedError(f"{type(self).__name__} defines no __getitem__")

    def __add__(self, other: Dataset[T]) -> ConcatDataset[T]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T]):
    """Samples in an order of their own: subclasses define `__iter__`."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError(f"{type(self).__name__} defines no __iter__")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is row i of each tensor."""

    def __init__(self, *tensors: Tensor) -> None:
        if len({len(t) for t in tensors}) != 1:
            raise ValueError(f"tensors have as many rows each, got {[len(t) for t in tensors]}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class Subset(Dataset[T]):
    """The samples of another dataset at these numbers."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int) -> T:
        found: T = self.dataset[self.indices[index]]
        return found

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[T]):
    """The samples of several datasets, one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index: int) -> T:
        at = index % len(self)
        which = bisect.bisect_right(self.cumulative_sizes, at)
        found: T = self.datasets[which][at - (self.cumulative_sizes[which - 1] if which else 0)]
        return found

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset[Any]]:
    """Disjoint subsets, drawn at random, of these lengths, or of these fractions of the whole."""
    n = len(dataset)
    if math.isclose(sum(lengths), 1) and n != 1:
        sizes = [math.floor(n * part) for part in lengths]
        for i in range(n - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(size) for size in lengths]
    if sum(sizes) != n:
        raise ValueError(f"lengths {list(lengths)} do not add up to {n} samples")
    order = randperm(n, generator=generator, device=_place(generator)).tolist()
    ends = list(accumulate(sizes))
    return [Subset(dataset, order[end - n : end]) for n, end in zip(sizes, ends, strict=True)]


def _place(generator: Generator | None) -> str:
    """Where numbers of samples are drawn: in the host's memory, or by a generator where it is."""
    return "cpu:0" if generator is None else generator.device


class Sampler(Generic[T]):
    """The numbers of samples, in order."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError(f"{type(self).__name__} defines no __iter__")


class SequentialSampler(Sampler[int]):
    """0 to n - 1."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """0 to n - 1 in random order; with replacement num_samples numbers, each drawn anew."""

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self.num_samples = len(data_source) if num_samples is None else num_samples

    def __iter__(self) -> Iterator[int]:
        n = len(self.data_source)
        if self.replacement:
            size = (self.num_samples,)
            yield from randint(
                0, n, size, generator=self.generator, device=_place(self.generator)
            ).tolist()
            return
        left = self.num_samples
        while left > 0:
            order = randperm(n, generator=self.generator, device=_place(self.generator)).tolist()
            yield from order[:left]
            left -= n

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """These numbers in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        order = randperm(len(self.indices), generator=self.generator, device=_place(self.generator))
        return (self.indices[i] for i in order.tolist())

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """num_samples numbers, each as likely as its weight; without replacement each at most once."""

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        self.weights = np.asarray([float(w) for w in weights], np.float64)
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        n, place = len(self.weights), _place(self.generator)
        if self.replacement:
            draws = rand(self.num_samples, generator=self.generator, device=place).numpy()
            ends = np.cumsum(self.weights) / self.weights.sum()
            chosen = np.minimum(np.searchsorted(ends, draws, side="right"), n - 1)
        else:  # the first of exponential times with these rates
            draws = rand(n, generator=self.generator, device=place).numpy().astype(np.float64)
            with np.errstate(divide="ignore"):
                chosen = np.argsort(-np.log1p(-draws) / self.weights)[: self.num_samples]
        return iter(chosen.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """A sampler's numbers in lists of batch_size; the last may be shorter, or is dropped."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        numbers = iter(self.sampler)
        while batch := list(islice(numbers, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type] # where it has none, neither has this
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


def default_collate(batch: Sequence[Any]) -> Any:
    """Samples as one: tensors and arrays stacked, numbers as a tensor, tuples, lists and dicts by
    their parts; strings stay a list."""
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(list(batch))
    if isinstance(first, np.ndarray | np.generic):
        return tensor(np.stack(batch))
    if isinstance(first, float | int):
        return tensor(list(batch))
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, tuple | list):
        parts = [default_collate(part) for part in zip(*batch, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    raise TypeError(
        f"no batch can be made of {type(first).__name__}; pass a collate_fn that makes one"
    )


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Batches by the numbers of their samples; with `single` a batch is one sample."""

    dataset: Any
    collate: Callable[[Any], Any]
    single: bool

    def answers(self) -> Callable[[Any], Any]:
        return self._batch

    def _batch(self, numbers: Any) -> Any:
        if self.single:
            return self.collate(self.dataset[numbers])
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(numbers))
        return self.collate([self.dataset[i] for i in numbers])


@dataclass(frozen=True, slots=True)
class _Iterated:
    """Batches of the next `size` samples of a dataset that is iterated; of None, single samples."""

    dataset: Any
    collate: Callable[[Any], Any]
    size: int | None
    drop_last: bool

    def answers(self) -> Callable[[Any], Any]:
        batches = self._batches()
        return lambda _: next(batches)

    def _batches(self) -> Iterator[Any]:
        if self.size is None:
            yield from map(self.collate, self.dataset)
            return
        samples = iter(self.dataset)
        while batch := list(islice(samples, self.size)):
            if len(batch) == self.size or not self.drop_last:
                yield self.collate(batch)


def _as_it_is(sample: T) -> T:
    return sample


class DataLoader(Generic[T]):
    """Batches of a dataset: in order or at random (shuffle), or as a sampler says, put together by
    collate_fn.

    `num_workers` processes load beside this one, each `prefetch_factor` (2) batches ahead; the
    batches and their order are those of 0. Each begins with worker_init_fn(its number), and with
    random numbers of Python, numpy and tensors that follow from the loader's generator and its
    number; `get_worker_info()` tells which one it is, by which an iterated dataset divides its
    samples. With `persistent_workers` they go on from epoch to epoch. What a worker raises is
    raised here with its traceback; one that dies, or takes longer than `timeout` seconds (0: any
    time) for a batch is a RuntimeError. In a worker tensors are on "cpu:0"; they arrive on the
    default device. `multiprocessing_context` is how processes start ("fork", the default, "spawn",
    "forkserver"). pin_memory changes nothing: memory of the host that a copy reads is kept by the
    copy.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.generator, self.num_workers = generator, num_workers
        if num_workers < 0 or timeout < 0:
            raise ValueError(f"num_workers and timeout are not negative: {num_workers}, {timeout}")
        if not num_workers and (prefetch_factor is not None or timeout or persistent_workers):
            raise ValueError(
                "prefetch_factor, timeout and persistent_workers are for num_workers of 1 or more"
            )
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers, self.timeout = persistent_workers, timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self._workers: Workers | None = None
        self._iterates = isinstance(dataset, IterableDataset)
        if (self._iterates or sampler is not None) and shuffle:
            raise ValueError("shuffle is for datasets with numbers, and without a sampler")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler or drop_last):
            raise ValueError("a batch_sampler takes no batch_size, shuffle, sampler or drop_last")
        if sampler is None and not self._iterates:
            chosen = RandomSampler(dataset, generator=generator) if shuffle else None
            sampler = chosen or SequentialSampler(dataset)
        self.sampler = sampler
        if batch_sampler is None and batch_size is not None and sampler is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_sampler = batch_sampler
        plain = batch_size is None and batch_sampler is None
        self.collate_fn = collate_fn or (_as_it_is if plain else default_collate)

    def __iter__(self) -> Iterator[Any]:
        # Drawn for any number of workers, so that the order of samples does not depend on it.
        seed = randint(0, 2**31, (), generator=self.generator, device=_place(self.generator))
        source: _Numbered | _Iterated
        requests: Iterable[Any]
        if self._iterates:
            source = _Iterated(self.dataset, self.collate_fn, self.batch_size, self.drop_last)
            requests = repeat(None)
        else:
            source = _Numbered(self.dataset, self.collate_fn, self.batch_sampler is None)
            found = self.sampler if self.batch_sampler is None else self.batch_sampler
            assert found is not None
            requests = found
        if self.num_workers:
            return self._from_workers(source, requests, int(seed.item()))
        return self._from_here(source, requests)

    def _from_here(self, source: _Numbered | _Iterated, requests: Iterable[Any]) -> Iterator[Any]:
        answers = source.answers()
        for request in requests:
            try:
                batch = answers(request)
            except StopIteration:
                return
            yield batch

    def _from_workers(
        self, source: _Numbered | _Iterated, requests: Iterable[Any], seed: int
    ) -> Iterator[Any]:
        workers = self._workers
        if workers is None:
            how = self.multiprocessing_context
            context = get_context(how or "fork") if how is None or isinstance(how, str) else how
            workers = Workers(source, self.num_workers, self.worker_init_fn, self.timeout, context)
            weakref.finalize(self, workers.close)
        self._workers = workers if self.persistent_workers else None
        ahead = self.num_workers * (self.prefetch_factor or 2)
        try:
            yield from workers.batches(requests, ahead, seed)
        except Exception:
            self._workers = None
            raise
        finally:
            if self._workers is not workers:
                workers.close()

    def __len__(self) -> int:
        if self._iterates:
            n = len(self.dataset)
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        counted: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        return len(counted)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("utils.data", name, [n for n in globals() if not n.startswith("_")])
