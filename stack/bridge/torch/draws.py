"""Random numbers of the device: the stack's stream by counter, whose place is data of the plans."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch import kernels, rows, seeds
from stack.bridge.torch.names import NAME, index_of
from stack.bridge.torch.tape import DTYPES, Row
from stack.framework.expr import elementwise as e
from stack.framework.expr import sampling
from stack.framework.random import WORDS, normal_of, uniform_of


class Generator(torch.Generator):
    """A stream of its own on a device. torch gives kernels another object for the same generator,
    so it is known by the seed of the C++ one, which stays as it was made."""

    def __new__(cls, device: Any = NAME) -> Generator:
        made: Generator = super().__new__(cls, device="cpu")
        made._index, made._seed = index_of(device), _SEED
        made._number = (_FIRST + next(_numbers)) % 2**63
        torch.Generator.manual_seed(made, made._number)
        _generators[made._number] = made
        made._state = None
        return made

    _index: int
    _seed: int
    _number: int
    _state: Tensor | None

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, self._index)

    @property
    def state(self) -> Tensor:
        """uint64[2] on the device: the key and the offset."""
        if self._state is None:
            start = torch.from_numpy(np.array([self._seed % 2**64, 0], np.uint64))
            self._state = kernels.from_cpu(start, self._index)
        return self._state

    @state.setter
    def state(self, state: Tensor) -> None:
        self._state = state

    def manual_seed(self, seed: int) -> Generator:
        """Begin the seed's stream."""
        self._seed, self._state = int(seed), None
        return self

    def seed(self) -> int:
        """Begin the stream of a seed that nobody knows, and tell it."""
        return self.manual_seed(secrets.randbits(63)).initial_seed()

    def initial_seed(self) -> int:
        return self._seed

    def get_state(self) -> Tensor:
        """The key and the offset, uint8[16] on the CPU."""
        return kernels.to_cpu(self.state).view(torch.uint8)

    def set_state(self, new_state: Tensor) -> Generator:
        """Go on there. Raises RuntimeError for what no `get_state` of this device gave."""
        if new_state.dtype is not torch.uint8 or new_state.numel() != 16:
            raise RuntimeError(
                f"the state of a generator on {NAME} is uint8[16], not {new_state.dtype} with "
                f"{new_state.numel()} elements"
            )
        offset = int(new_state.cpu().contiguous().view(torch.int64)[1]) % 2**64
        if offset % WORDS:
            raise RuntimeError(
                f"the offset of a generator on {NAME} is a multiple of {WORDS}, not {offset}"
            )
        self.state = kernels.from_cpu(new_state.cpu().contiguous().view(torch.uint64), self._index)
        self._seed = int(new_state.cpu().contiguous().view(torch.int64)[0]) % 2**64
        return self

    def clone_state(self) -> Generator:
        """Another generator at the same place."""
        made = Generator(self.device)
        made.set_state(self.get_state())
        return made

    def __reduce__(self) -> Any:
        return _restored, (str(self.device), self.get_state())

    def __deepcopy__(self, memo: Any) -> Generator:
        return self.clone_state()


_SEED = 67280421310721
"""Of a generator that nobody seeds, as torch's."""
_FIRST = secrets.randbits(62)
_numbers = itertools.count()
_generators: WeakValueDictionary[int, Generator] = WeakValueDictionary()
"""By the seed of the C++ generator beneath."""
_defaults: dict[int, Generator] = {}
"""Of each device, what it draws from without a generator."""


def _restored(device: str, state: Tensor) -> Generator:
    return Generator(device).set_state(state)


seeds.restarts.append(_defaults.clear)


def stream_of(index: int) -> Generator:
    """What a device draws from without a generator."""
    if index not in _defaults:
        _defaults[index] = Generator(index).manual_seed(seeds.given[0])
    return _defaults[index]


def get_state(index: int) -> Tensor:
    """The key and the offset, uint8[16] on the CPU."""
    return stream_of(index).get_state()


def set_state(index: int, state: Tensor) -> None:
    """Go on there."""
    stream_of(index).set_state(state)


def _words(index: int, n: int, generator: Any) -> Tensor:
    """uint32[n], the next ones."""
    stream = stream_of(index)
    if generator is not None:
        own = _generators.get(torch.Generator.initial_seed(generator))
        if own is None or own._index != index:
            raise RuntimeError(
                f"a generator of {generator.device if own is None else own.device} draws nothing "
                f'on {NAME}:{index}; take torch.Generator("{NAME}:{index}"), or draw there and '
                "move the tensor"
            )
        stream = own
    drawn, stream.state = kernels.call(rows.ROWS["philox"], (stream.state, n), {})
    return drawn


def _uniform(words: Node, shape: Sequence[int], dtype: DType, low: float, high: float) -> Node:
    n = math.prod(shape)
    made = g.reshape(uniform_of(words, n, dtype), tuple(shape))
    if (low, high) == (0.0, 1.0):
        return made
    return g.cast(e.add(e.mul(made, high - low), low), dtype)


def _normal(words: Node, shape: Sequence[int], dtype: DType, mean: float, std: float) -> Node:
    made = normal_of(words, shape, dtype)
    return g.cast(e.add(e.mul(made, std), mean), dtype)


def _integers(words: Node, shape: Sequence[int], dtype: DType, low: int, high: int) -> Node:
    """Of the high half of the product of a word and the number of them."""
    wide = g.mul(g.cast(words, DType.U64), g.full(words.shape, high - low, DType.U64))
    above = g.cast(e.shift_right(wide, 32), DType.I64)
    return g.reshape(g.cast(e.add(above, low), dtype), tuple(shape))


def _bernoulli(words: Node, shape: Sequence[int], dtype: DType, p: float) -> Node:
    drawn = uniform_of(words, math.prod(shape), DType.F32)
    return g.reshape(g.cast(e.lt(drawn, p), dtype), tuple(shape))


def _bernoulli_of(words: Node, p: Node) -> Node:
    drawn = g.reshape(uniform_of(words, p.type.size, DType.F32), p.shape)
    return g.cast(e.lt(drawn, p), p.dtype)


def _exponential(words: Node, shape: Sequence[int], dtype: DType, rate: float) -> Node:
    drawn = uniform_of(words, math.prod(shape), DType.F32)
    made = e.div(g.neg(g.log(e.sub(1.0, drawn))), rate)
    return g.reshape(g.cast(made, dtype), tuple(shape))


def _log_normal(words: Node, shape: Sequence[int], dtype: DType, mean: float, std: float) -> Node:
    return g.exp(_normal(words, shape, dtype, mean, std))


def _cauchy(words: Node, shape: Sequence[int], dtype: DType, median: float, sigma: float) -> Node:
    drawn = g.reshape(uniform_of(words, math.prod(shape), DType.F32), tuple(shape))
    angle = e.mul(e.sub(drawn, 0.5), math.pi)
    return g.cast(e.add(e.mul(e.div(g.sin(angle), g.cos(angle)), sigma), median), dtype)


def _geometric(words: Node, shape: Sequence[int], dtype: DType, p: float) -> Node:
    drawn = g.reshape(uniform_of(words, math.prod(shape), DType.F32), tuple(shape))
    trials = g.ceil(e.div(g.log(e.sub(1.0, drawn)), g.log1p(g.full((), -p, DType.F32))))
    return g.cast(e.clamp(trials, min=1.0), dtype)


def _rrelu(words: Node, x: Node, low: float, high: float) -> list[Node]:
    drawn = g.reshape(uniform_of(words, x.type.size, DType.F32), x.shape)
    slope = e.add(e.mul(drawn, high - low), low)
    noise = g.cast(e.where(e.le(x, 0), slope, 1.0), x.dtype)
    return [g.cast(e.mul(x, noise), x.dtype), noise]


def _dropout(words: Node, x: Node, p: float) -> list[Node]:
    drawn = g.reshape(uniform_of(words, x.type.size, DType.F32), x.shape)
    kept = e.le(p, drawn)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return [e.where(kept, e.mul(x, scale), 0.0), kept]


_UNIFORM, _NORMAL = Row("uniform_", _uniform), Row("normal_", _normal)
_INTEGERS, _BERNOULLI = Row("random_", _integers), Row("bernoulli_", _bernoulli)
_BERNOULLI_OF, _DROPOUT = Row("bernoulli", _bernoulli_of), Row("native_dropout", _dropout)
_EXPONENTIAL, _CAUCHY = Row("exponential_", _exponential), Row("cauchy_", _cauchy)
_LOG_NORMAL, _GEOMETRIC = Row("log_normal_", _log_normal), Row("geometric_", _geometric)
_RRELU = Row("rrelu_with_noise", _rrelu)


def _into(row: Row, x: Tensor, each: int, generator: Any, *numbers: Any) -> Tensor:
    if x.numel():
        drawn = _words(x.device.index, each * x.numel(), generator)
        args = (drawn, tuple(x.shape), DTYPES[x.dtype], *numbers)
        kernels.call_into(row, [x], args, {})
    return x


def uniform_(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    if low > high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
        )
    each = 2 if x.dtype is torch.float64 else 1
    return _into(_UNIFORM, x, each, generator, float(low), float(high))


def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    each = 4 if x.dtype is torch.float64 else 2
    return _into(_NORMAL, x, each, generator, float(mean), float(std))


def random_from(x: Tensor, low: int, high: int | None, *, generator: Any = None) -> Tensor:
    if high is None:
        high = low + 2**32
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got {low} >= {high}")
    if high - low > 2**32:
        raise NotImplementedError(f"random_ of {high - low} numbers on {x.device}: 2**32 at most")
    return _into(_INTEGERS, x, 1, generator, low, high)


def random_to(x: Tensor, high: int, *, generator: Any = None) -> Tensor:
    return random_from(x, 0, high, generator=generator)


def random_(x: Tensor, *, generator: Any = None) -> Tensor:
    most = {torch.uint8: 256, torch.int8: 128, torch.int16: 2**15, torch.int32: 2**31}
    high = most.get(x.dtype, 2 if x.dtype is torch.bool else 2**24)
    return random_from(x, 0, high, generator=generator)


def bernoulli_(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return _into(_BERNOULLI, x, 1, generator, float(p))


def exponential_(x: Tensor, rate: float = 1.0, *, generator: Any = None) -> Tensor:
    if rate <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={rate}")
    return _into(_EXPONENTIAL, x, 1, generator, float(rate))


def bernoulli(p: Tensor, *, generator: Any = None) -> Tensor:
    drawn = _words(p.device.index, p.numel(), generator)
    return kernels.call(_BERNOULLI_OF, (drawn, p), {})[0]


def bernoulli_each_(x: Tensor, p: Tensor, *, generator: Any = None) -> Tensor:
    wanted = p.to(x.device, torch.float32).expand(x.shape)
    return x.copy_(torch.bernoulli(wanted, generator=generator))


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or not x.numel():
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    drawn = _words(x.device.index, x.numel(), None)
    y, kept = kernels.call(_DROPOUT, (drawn, x, float(p)), {})
    return y, kept


def log_normal_(x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Tensor:
    if std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    each = 4 if x.dtype is torch.float64 else 2
    return _into(_LOG_NORMAL, x, each, generator, float(mean), float(std))


def cauchy_(x: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Tensor:
    if sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    return _into(_CAUCHY, x, 1, generator, float(median), float(sigma))


def geometric_(x: Tensor, p: float, *, generator: Any = None) -> Tensor:
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    return _into(_GEOMETRIC, x, 1, generator, float(p))


def rrelu_with_noise(x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3,
                     training: bool = False, generator: Any = None) -> Tensor:  # fmt: skip
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
    drawn = _words(x.device.index, x.numel(), generator)
    y, slopes = kernels.call(_RRELU, (drawn, x, float(lower), float(upper)), {})
    noise.copy_(slopes)
    return y


def multinomial(p: Tensor, count: int, replacement: bool = False, *,
                generator: Any = None) -> Tensor:  # fmt: skip
    """Without replacement: the first of exponential times with these rates."""
    if p.dim() not in (1, 2) or not p.dtype.is_floating_point:
        raise RuntimeError(f"multinomial: prob_dist is one or two axes of floats, got {p.dtype}")
    n = p.shape[-1]
    if not replacement and count > n:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    weights = p.detach().float()
    if not replacement:
        times = torch.empty_like(weights).exponential_(generator=generator)
        ranks = torch.where(weights > 0, times / weights, math.inf)
        return ranks.argsort(-1).narrow(-1, 0, count).clone()
    ends = weights.cumsum(-1)
    drawn = torch.empty((*p.shape[:-1], count), device=p.device).uniform_(generator=generator)
    return torch.searchsorted(ends, drawn * ends[..., -1:], right=True).clamp_(max=n - 1)


_TRIES = 32
"""Of a rejection that refuses fewer than one of three: all are refused once in 1e15 draws."""


def _wide(x: Tensor) -> torch.dtype:
    """What logarithms of probabilities are summed in."""
    has = kernels.tape_of(x.device.index).engine.device.info.dtypes
    return torch.float64 if DType.F64 in has else torch.float32


def _tries(like: Tensor, generator: Any) -> Tensor:
    """Uniform numbers above 0, `_TRIES` for each element."""
    drawn = torch.empty((_TRIES, *like.shape), device=like.device).uniform_(generator=generator)
    return drawn.clamp_(min=2.0**-25).to(like.dtype)


def _first(values: Tensor, accepted: Tensor) -> Tensor:
    """The first accepted value of each element's tries."""
    at = accepted.to(torch.int32).argmax(0, keepdim=True)
    return values.gather(0, at).squeeze(0)


def standard_gamma(alpha: Tensor, generator: Any = None) -> Tensor:
    """Samples of rate 1, of which none is 0."""
    if not alpha.numel():
        return torch.empty_like(alpha)
    a = alpha.detach().to(torch.float64 if alpha.dtype is torch.float64 else torch.float32)
    x = torch.empty((_TRIES, *a.shape), dtype=a.dtype, device=a.device).normal_(generator=generator)
    level = _tries(a, generator).log()
    power = torch.empty_like(a).uniform_(generator=generator).clamp_(min=2.0**-25)
    (made,) = kernels.call(_GAMMA, (a, x, level, power), {})
    return made.clamp(min=torch.finfo(alpha.dtype).tiny).to(alpha.dtype)


_GAMMA = Row("_standard_gamma", sampling.gamma)


def dirichlet(alpha: Tensor, generator: Any = None) -> Tensor:
    parts = standard_gamma(alpha, generator)
    return parts / parts.sum(-1, keepdim=True)


def _counted(log_p: Tensor, dtype: torch.dtype, generator: Any) -> Tensor:
    """How many of the first values have a cumulative probability below a uniform number."""
    drawn = torch.empty(log_p.shape[:-1], device=log_p.device).uniform_(generator=generator)
    return (drawn.unsqueeze(-1) > log_p.exp().cumsum(-1)).sum(-1).to(dtype)


_COUNTS = 64
"""A mean below 10 has none above once in 1e30 draws."""


def poisson(rate: Tensor, generator: Any = None) -> Tensor:
    """Small means by their cumulative probabilities, others by Hoermann's rejection (PTRS)."""
    if not rate.numel():
        return torch.empty_like(rate)
    mean = rate.detach().to(_wide(rate))
    k = torch.arange(_COUNTS, device=rate.device, dtype=mean.dtype)
    low = mean.clamp(max=10.0).unsqueeze(-1)
    few = _counted(torch.xlogy(k, low) - low - torch.lgamma(k + 1), mean.dtype, generator)
    lam = mean.clamp(min=10.0)
    b = 0.931 + 2.53 * lam.sqrt()
    a = -0.059 + 0.02483 * b
    u, v = _tries(lam, generator) - 0.5, _tries(lam, generator)
    near = 0.5 - u.abs()
    n = ((2 * a / near + b) * u + lam + 0.43).floor()
    scale = (1.1239 + 1.1328 / (b - 3.4)).log() - (a / (near * near) + b).log()
    likely = n.clamp(min=0.0) * lam.log() - lam - torch.lgamma(n.clamp(min=0.0) + 1)
    at_once = (near >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    at_all = (n >= 0) & ((near >= 0.013) | (v <= near)) & (v.log() + scale <= likely)
    return torch.where(mean < 10, few, _first(n, at_once | at_all)).to(rate.dtype)


def _tail(k: Tensor) -> Tensor:
    """The logarithm of k! without Stirling's approximation of it."""
    m = k + 1
    exact = torch.lgamma(m) - (k + 0.5) * m.log() + m - 0.5 * math.log(2 * math.pi)
    return torch.where(k < 10, exact, (1 / 12 - (1 / 360 - 1 / 1260 / (m * m)) / (m * m)) / m)


def binomial(count: Tensor, prob: Tensor, generator: Any = None) -> Tensor:
    """Small means by their cumulative probabilities, others by Hoermann's rejection (BTRS)."""
    wide = _wide(prob)
    total, given = torch.broadcast_tensors(count.detach().to(wide), prob.detach().to(wide))
    if not given.numel():
        return torch.empty_like(given, dtype=count.dtype)
    p = torch.minimum(given, 1 - given)
    k = torch.arange(_COUNTS, device=p.device, dtype=wide)
    one, each = total.unsqueeze(-1), torch.where(total * p < 10, p, p * 0).unsqueeze(-1)
    ways = ((one - k + 1).clamp(min=0.0) / k.clamp(min=1.0)).log()
    ways = torch.where(k > 0, ways, 0.0).cumsum(-1)
    log_p = ways + torch.xlogy(k, each) + (one - k).clamp(min=0.0) * torch.log1p(-each)
    few = _counted(log_p, wide, generator)
    q = torch.where(total * p < 10, p * 0 + 0.5, p)
    n = torch.where(total * p < 10, total * 0 + 40, total)
    spread = (n * q * (1 - q)).sqrt()
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * q
    u, v = _tries(n, generator) - 0.5, _tries(n, generator)
    near = 0.5 - u.abs()
    found = ((2 * a / near + b) * u + n * q + 0.5).floor()
    inside = (found >= 0) & (found <= n)
    f = torch.minimum(found.clamp(min=0.0), n)
    m, r = ((n + 1) * q).floor(), q / (1 - q)
    bound = (m + 0.5) * ((m + 1) / (r * (n - m + 1))).log()
    bound = bound + (n + 1) * ((n - m + 1) / (n - f + 1)).log()
    bound = bound + (f + 0.5) * (r * (n - f + 1) / (f + 1)).log()
    bound = bound + _tail(m) + _tail(n - m) - _tail(f) - _tail(n - f)
    scaled = (v * (2.83 + 5.1 / b) * spread / (a / (near * near) + b)).log()
    at_once = (near >= 0.07) & (v <= 0.92 - 4.2 / b)
    made = torch.where(total * p < 10, few, _first(f, inside & (at_once | (scaled <= bound))))
    return torch.where(given > 0.5, total - made, made).to(count.dtype)


def randperm(n: int, *, generator: Any = None, out: Tensor) -> Tensor:
    """The order of n random words."""
    out.resize_(n)
    if n:
        out.copy_(_words(out.device.index, n, generator).to(torch.int64).argsort())
    return out


KERNELS: dict[str, Any] = {
    "uniform_": uniform_,
    "normal_": normal_,
    "random_": random_,
    "random_.from": random_from,
    "random_.to": random_to,
    "bernoulli_.float": bernoulli_,
    "bernoulli_.Tensor": bernoulli_each_,
    "exponential_": exponential_,
    "bernoulli": bernoulli,
    "log_normal_": log_normal_,
    "cauchy_": cauchy_,
    "geometric_": geometric_,
    "rrelu_with_noise": rrelu_with_noise,
    "multinomial": multinomial,
    "native_dropout": native_dropout,
    "_standard_gamma": standard_gamma,
    "_sample_dirichlet": dirichlet,
    "poisson": poisson,
    "binomial": binomial,
    "randperm.generator_out": randperm,
}
"""By operator."""


# As parts of compiled graphs: of the next n words of the stream, draw(n), what eager tensors take

Draw = Callable[[int], Node]


def _filled(row: Row, each: int, wide: int, *otherwise: float) -> Callable[..., Node]:
    """The part of an operator that fills a tensor: `each` words for an element, `wide` for one of
    float64. It takes a shape, or a tensor that has it, and numbers, or those that are meant
    otherwise."""

    def part(draw: Draw, like: Any, *numbers: Any, dtype: DType) -> Node:
        shape = like.shape if isinstance(like, Node) else tuple(like)
        drawn = draw(math.prod(shape) * (wide if dtype is DType.F64 else each))
        made: Node = row.lower(drawn, shape, dtype, *numbers, *otherwise[len(numbers) :])
        return made

    return part


def _dropout_part(draw: Draw, x: Node, p: float, train: bool | None, *, dtype: DType) -> list[Node]:
    if train is False:
        return [x, g.full(x.shape, 1, DType.BOOL)]
    return _dropout(draw(x.type.size), x, p)


_uniforms, _normals = _filled(_UNIFORM, 1, 2, 0.0, 1.0), _filled(_NORMAL, 2, 4, 0.0, 1.0)
_whole = _filled(_INTEGERS, 1, 1)

IN_GRAPHS: dict[str, Callable[..., Any]] = {
    "native_dropout": _dropout_part,
    "bernoulli": lambda draw, p, *, dtype: _bernoulli_of(draw(p.type.size), p),
    "bernoulli.p": _filled(_BERNOULLI, 1, 1, 0.5),
    **dict.fromkeys(("rand", "rand_like", "uniform"), _uniforms),
    **dict.fromkeys(("randn", "randn_like", "normal_functional"), _normals),
    "exponential": _filled(_EXPONENTIAL, 1, 1, 1.0),
    "randint": lambda draw, high, shape, *, dtype: _whole(draw, shape, 0, high, dtype=dtype),
    "randint.low": lambda draw, low, high, shape, *, dtype: _whole(
        draw, shape, low, high, dtype=dtype
    ),
}
"""By operator."""
