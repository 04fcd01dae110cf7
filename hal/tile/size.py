"""Sizes that are known only when a plan runs.

A `Size` stands where an integer stands: in the shape of a type, an index, a bound. It is an
expression of symbols, in one normal form, so that equal expressions are equal objects to a
dictionary. Each symbol has a *hint*: the value that it has in the call for which is compiled.

A comparison is decided from what is known of the symbols; where that says nothing, by the hints,
and then what was found is kept as a *condition* (`Facts.conditions`). Whoever compiles with sizes
may therefore ask anything of them: what was compiled is right for every call whose sizes meet the
conditions. Whoever needs a plain integer (`range`, an index of a list) gets the hint, and the
condition that the size is that. `hint` alone asks without a condition: for choices that change how
fast something is and not what it is.

Where a kernel uses a size, that is a scalar parameter; its value is computed by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from math import gcd, inf, lcm, nan, prod
from typing import Any, cast

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, node

Monomial = tuple["Atom", ...]
Terms = tuple[tuple[Monomial, int], ...]
"""A sum of products: (its factors in order, the coefficient), in order."""


@dataclass(frozen=True, slots=True, order=True)
class Atom:
    """A factor: the symbol `name`, or the quotient or remainder ("//", "%") of two sums, rounded
    down."""

    name: str
    left: Terms = ()
    right: Terms = ()

    def __str__(self) -> str:
        return (
            f"(({_text(self.left)}) {self.name} ({_text(self.right)}))" if self.left else self.name
        )


@dataclass(frozen=True, slots=True)
class Condition:
    """What a question about sizes and numbers, by its text, was answered."""

    question: str
    holds: bool

    def __str__(self) -> str:
        return f"({self.question}) is {self.holds}"


@dataclass(eq=False, slots=True)
class Facts:
    """What is known of some symbols: the hint of each and the least value that it can have; and the
    conditions under which what was decided so far is right."""

    hints: dict[str, float] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    conditions: dict[Condition, None] = field(default_factory=dict)
    named: dict[Terms, str] = field(default_factory=dict)
    """The scalar parameters of kernels: expressions by their names."""

    def symbol(self, name: str, hint: int, least: int = 0) -> int:
        """A new symbol that is never less than `least`. It counts as an integer to whoever reads
        types."""
        assert name not in self.hints, f"there is already a size {name}"
        assert hint >= least, f"{name} is {hint}, which is less than {least}"
        self.hints[name], self.least[name] = hint, least
        return cast("int", Size((((Atom(name),), 1),), self))

    def number(self, name: str, hint: float) -> float:
        """A new symbol for a number. It counts as a float to whoever reads types."""
        assert name not in self.hints, f"there is already a number {name}"
        self.hints[name] = hint
        return cast("float", Number(name, hint, self))

    def size(self, name: str) -> int:
        """The size that a kernel's scalar parameter is."""
        terms = next(terms for terms, known in self.named.items() if known == name)
        return cast("int", Size(terms, self))

    def values(self, sizes: Iterable[object]) -> Callable[[Values], tuple[Any, ...]]:
        """A function from the symbols' values to those of some sizes."""
        return compiled([str(s) for s in sizes], self.hints)

    def meet(self, conditions: Iterable[Condition]) -> bool:
        """Whether conditions that were found elsewhere hold for the hints; they are conditions from
        now on if so. Raises SyntaxError, NameError or TypeError for a question that is none."""
        more = {**self.conditions, **dict.fromkeys(conditions)}
        try:
            holds = Facts(self.hints, self.least, more).holding()(self.hints)
        except ZeroDivisionError:
            return False
        if holds:
            self.conditions.update(more)
        return holds

    def holding(self) -> Callable[[Values], bool]:
        """A function that tells whether the symbols' values meet the conditions, and are not too
        small."""
        tests = [f"{name} >= {least}" for name, least in self.least.items()]
        # In order: that a divisor is not 0 was asked before the quotient was.
        tests += [str(c) for c in self.conditions]
        if not tests:
            return lambda values: True
        found = compiled([" and ".join(tests)], self.hints)

        def holds(values: Values) -> bool:
            try:
                return bool(found(values)[0])
            except OverflowError:  # a power that no float holds
                return False

        return holds


Values = Mapping[str, float]
"""What the symbols are in a call."""


def compiled(texts: Sequence[str], names: Iterable[str]) -> Callable[[Values], tuple[Any, ...]]:
    """Expressions of some names as one function of their values."""
    body = "".join(f"({text}), " for text in texts)
    known, order = {"__builtins__": {}, "inf": inf, "nan": nan}, tuple(names)
    found = eval(f"lambda {', '.join(order)}: ({body})", known)
    return lambda values: cast("tuple[Any, ...]", found(*[values[name] for name in order]))


class Size:
    """An integer that is an expression of symbols. Make the first ones with `Facts.symbol`."""

    __slots__ = ("facts", "hash", "hint", "terms")

    def __init__(self, terms: Terms, facts: Facts) -> None:
        self.terms, self.facts = terms, facts
        self.hash = hash((id(facts), terms))
        self.hint = _hint(terms, facts.hints)

    @property  # type: ignore[misc] # it is what `isinstance` goes by
    def __class__(self) -> type:
        return int

    def __str__(self) -> str:
        return _text(self.terms)

    def __repr__(self) -> str:
        return f"{self}@{id(self.facts):x}"  # sizes of other facts are others

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __hash__(self) -> int:
        return self.hash

    # arithmetic

    def _of(self, terms: Mapping[Monomial, int]) -> Any:
        return _made(terms, self.facts)

    def __add__(self, other: Any) -> Any:
        more = terms_of(other)
        if more is None:
            return _number(self, "+", other)
        total = dict(self.terms)
        for factors, c in more:
            total[factors] = total.get(factors, 0) + c
        return self._of(total)

    def __radd__(self, other: Any) -> Any:
        return self + other if terms_of(other) is not None else _number(other, "+", self)

    def __neg__(self) -> Any:
        return self._of({factors: -c for factors, c in self.terms})

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __sub__(self, other: Any) -> Any:
        return self + -other if terms_of(other) is not None else _number(self, "-", other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other if terms_of(other) is not None else _number(other, "-", self)

    def __truediv__(self, other: Any) -> Any:
        return _number(self, "/", other)

    def __rtruediv__(self, other: Any) -> Any:
        return _number(other, "/", self)

    def __pow__(self, other: Any) -> Any:
        if type(other) is int and other >= 0:
            return prod([self] * other)
        return _number(self, "**", other)

    def __rpow__(self, other: Any) -> Any:
        return _number(other, "**", self)

    def __mul__(self, other: Any) -> Any:
        more = terms_of(other)
        if more is None:
            return _number(self, "*", other)
        total: dict[Monomial, int] = {}
        for a, x in self.terms:
            for b, y in more:
                factors = tuple(sorted((*a, *b)))
                total[factors] = total.get(factors, 0) + x * y
        return self._of(total)

    def __rmul__(self, other: Any) -> Any:
        return self * other if terms_of(other) is not None else _number(other, "*", self)

    def __floordiv__(self, other: Any) -> Any:
        return _divided(self, other, self.facts)[0]

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided(other, self, self.facts)[0]

    def __mod__(self, other: Any) -> Any:
        return _divided(self, other, self.facts)[1]

    def __rmod__(self, other: Any) -> Any:
        return _divided(other, self, self.facts)[1]

    def __divmod__(self, other: Any) -> Any:
        return _divided(self, other, self.facts)

    def __rdivmod__(self, other: Any) -> Any:
        return _divided(other, self, self.facts)

    # questions

    def __eq__(self, other: object) -> bool:
        more = terms_of(other)
        if type(other) is Number:
            return other == self
        if type(other) is float:
            return other == int(other) and self == int(other)
        if more is None or (type(other) is Size and other.facts is not self.facts):
            return False
        if more == self.terms:
            return True
        apart = self - other
        low, high = bounds(apart)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        return _asked(apart, "==")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return is_negative(self - other) if _is_whole(other) else _compared(self, "<", other)

    def __ge__(self, other: Any) -> bool:
        return not self < other if _is_whole(other) else _compared(self, ">=", other)

    def __gt__(self, other: Any) -> bool:
        return is_negative(other - self) if _is_whole(other) else _compared(self, ">", other)

    def __le__(self, other: Any) -> bool:
        return not self > other if _is_whole(other) else _compared(self, "<=", other)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        _asked(self - self.hint, "==")
        return self.hint

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))


class Number:
    """A float that is an expression of symbols, as text. Make the first ones with
    `Facts.number`."""

    __slots__ = ("facts", "hint", "text")

    def __init__(self, text: str, hint: float, facts: Facts) -> None:
        self.text, self.hint, self.facts = text, hint, facts

    @property  # type: ignore[misc] # it is what `isinstance` goes by
    def __class__(self) -> type:
        return float

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{self}@{id(self.facts):x}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __hash__(self) -> int:
        return hash((id(self.facts), self.text))

    def __add__(self, other: Any) -> Any:
        return _number(self, "+", other)

    def __radd__(self, other: Any) -> Any:
        return _number(other, "+", self)

    def __sub__(self, other: Any) -> Any:
        return _number(self, "-", other)

    def __rsub__(self, other: Any) -> Any:
        return _number(other, "-", self)

    def __mul__(self, other: Any) -> Any:
        return _number(self, "*", other)

    def __rmul__(self, other: Any) -> Any:
        return _number(other, "*", self)

    def __truediv__(self, other: Any) -> Any:
        return _number(self, "/", other)

    def __rtruediv__(self, other: Any) -> Any:
        return _number(other, "/", self)

    def __pow__(self, other: Any) -> Any:
        return _number(self, "**", other)

    def __rpow__(self, other: Any) -> Any:
        return _number(other, "**", self)

    def __neg__(self) -> Any:
        return Number(f"(-{self.text})", -self.hint, self.facts)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __eq__(self, other: object) -> bool:
        if type(other) is Number and (other.text, other.facts) == (self.text, self.facts):
            return True
        return _plain(other) is not None and _compared(self, "==", other)

    def __lt__(self, other: Any) -> bool:
        return _compared(self, "<", other)

    def __le__(self, other: Any) -> bool:
        return _compared(self, "<=", other)

    def __gt__(self, other: Any) -> bool:
        return _compared(self, ">", other)

    def __ge__(self, other: Any) -> bool:
        return _compared(self, ">=", other)

    def __bool__(self) -> bool:
        return self != 0

    def __float__(self) -> float:
        if self.hint == self.hint:
            _compared(self, "==", self.hint)
        else:
            _compared(self, "!=", self)  # only what is no number differs from itself
        return float(self.hint)

    def __int__(self) -> int:
        return int(float(self))

    __trunc__ = __int__


def is_symbolic(value: object) -> bool:
    """Whether a number is known only when a plan runs."""
    return type(value) in (Size, Number)


def _plain(value: object) -> float | None:
    """What a number is in the call for which is compiled; None for what is none."""
    if type(value) is Size or type(value) is Number:
        return value.hint
    return value if isinstance(value, int | float) else None


def _is_whole(value: object) -> bool:
    return terms_of(value) is not None


def _said(value: Any) -> str:
    if type(value) is Size:
        return f"({value})"
    return str(value) if type(value) is Number else repr(value)


def _facts_of(*values: Any) -> Facts:
    found: Facts = next(v.facts for v in values if is_symbolic(v))
    return found


def _number(a: Any, op: str, b: Any) -> Any:
    """A number as an expression of others."""
    x, y = _plain(a), _plain(b)
    if x is None or y is None:
        return NotImplemented
    match op:
        case "+":
            value = x + y
        case "-":
            value = x - y
        case "*":
            value = x * y
        case "/":
            value = x / y
            assert b != 0, "a condition of the quotient"
        case _:
            value = x**y
    return Number(f"({_said(a)} {op} {_said(b)})", value, _facts_of(a, b))


def _compared(a: Any, op: str, b: Any) -> bool:
    """What the hints say; a condition from now on."""
    x, y = _plain(a), _plain(b)
    if x is None or y is None:
        raise TypeError(f"{a} {op} {b}: one of them is no number")
    answers = {"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y, "==": x == y, "!=": x != y}
    question = f"{_said(a)} {op} {_said(b)}"
    _facts_of(a, b).conditions[Condition(question, answers[op])] = None
    return answers[op]


def hint(size: int) -> int:
    """The value of a size in the call for which is compiled, without a condition: only for choices
    of how something is computed that are right for any value."""
    given: object = size
    return given.hint if type(given) is Size else size


def expected(size: int, least: int) -> int:
    """As `hint`, for choices that are to be good ones for larger sizes, too: the symbols of a sum
    of products count as at least `least`."""
    given: object = size
    if type(given) is not Size or any(atom.left for factors, _ in given.terms for atom in factors):
        return hint(size)
    hints = {name: max(value, least) for name, value in given.facts.hints.items()}
    return max(given.hint, _hint(given.terms, hints))


def is_fixed(size: int) -> bool:
    """Whether a size is a plain number."""
    given: object = size
    return type(given) is not Size


def is_one(size: int) -> bool:
    """Whether a size is the number 1; nothing is asked of it."""
    return is_fixed(size) and size == 1


def may_be_positive(size: int) -> bool:
    """Whether a size that is not negative is not the number 0; nothing is asked of it."""
    return not is_fixed(size) or size > 0


def said(size: Size) -> dict[str, Any]:
    """A size as values of JSON, which `read` takes."""
    return {"sum": _listed(size.terms)}


def read(found: Any, facts: Facts) -> int:
    """The size of symbols of `facts` that was `said`. Raises ValueError for anything else."""
    if not isinstance(found, dict) or set(found) != {"sum"}:
        raise ValueError("no sum")
    size = _made(dict(_terms(found["sum"], facts)), facts)
    if type(size) is not Size:
        raise ValueError("a sum without symbols")
    return cast("int", size)


def _listed(terms: Terms) -> list[Any]:
    def listed(atom: Atom) -> Any:
        return [atom.name, _listed(atom.left), _listed(atom.right)] if atom.left else atom.name

    return [[list(map(listed, factors)), c] for factors, c in terms]


def _terms(found: Any, facts: Facts) -> Terms:
    def atom(x: Any) -> Atom:
        if isinstance(x, list) and len(x) == 3 and x[0] in ("//", "%"):
            return Atom(x[0], _terms(x[1], facts), _terms(x[2], facts))
        if not isinstance(x, str) or x not in facts.least:
            raise ValueError(f"{x!r} is no symbol")
        return Atom(x)

    if not isinstance(found, list) or not found:
        raise ValueError("no sum")
    terms = []
    for product in found:
        if not isinstance(product, list) or len(product) != 2 or type(product[1]) is not int:
            raise ValueError("no product")
        factors, c = product
        if not isinstance(factors, list) or not c:
            raise ValueError("no product")
        terms.append((tuple(sorted(map(atom, factors))), c))
    return tuple(sorted(terms))


def periods(sizes: Iterable[int]) -> dict[str, int]:
    """Of each symbol of which some size has a quotient or remainder by plain numbers, after how
    many of it they go on as before: between sizes so far apart they are sums of products."""
    found: dict[str, int] = {}
    for size in sizes:
        given: object = size
        if type(given) is Size:
            _note_periods(given.terms, 1, found)
    return found


def _note_periods(terms: Terms, period: int, found: dict[str, int]) -> None:
    for factors, _ in terms:
        for atom in factors:
            if not atom.left:
                if period > 1:
                    found[atom.name] = lcm(found.get(atom.name, 1), period)
                continue
            divisor = atom.right[0][1] if len(atom.right) == 1 and not atom.right[0][0] else 1
            _note_periods(atom.left, period * abs(divisor), found)


def equal(a: int, b: int) -> bool:
    """Whether two sizes are known to be equal; nothing is asked of them."""
    return terms_of(a) == terms_of(b)


def less(a: int, b: int) -> bool:
    """Whether a is known to be less than b; nothing is asked of them."""
    low, _ = bounds(b - a)
    return low is not None and low > 0


def known_divisor(size: int) -> int:
    """The greatest number that a size is known to be a multiple of."""
    given: object = size
    return gcd(*(c for _, c in given.terms)) if type(given) is Size else size


def divides(step: int, size: int) -> bool:
    """Whether `size` is known to be a multiple of `step`; nothing is asked of it."""
    rest: object = size % step
    return type(rest) is not Size and rest == 0


def lowered(size: Size) -> Node:
    """A size as an i64 scalar parameter of a kernel."""
    named = size.facts.named
    name = named.setdefault(size.terms, f"n{len(named)}")
    return node("scalar", Type((), DType.I64), name=name)


def terms_of(value: object) -> Terms | None:
    """An integer or size as a sum; None for anything else."""
    if type(value) is Size:
        return value.terms
    if isinstance(value, int):
        return (((), int(value)),) if value else ()
    return None


def bounds(size: object) -> tuple[int | None, int | None]:
    """The least and the greatest value that a size is known to have; None where nothing is
    known."""
    if type(size) is not Size:
        assert isinstance(size, int), f"{size!r} is no size"
        return size, size
    return _bounds(size.terms, size.facts)


def is_negative(size: Any) -> bool:
    """Whether a size is less than 0."""
    low, high = bounds(size)
    if low is not None and low >= 0:
        return False
    if high is not None and high < 0:
        return True
    return _asked(size, "<")


def _asked(size: Size, kind: str) -> bool:
    """What the hints say; a condition from now on."""
    holds = size.hint < 0 if kind == "<" else size.hint == 0
    size.facts.conditions[Condition(f"{size} {kind} 0", holds)] = None
    return holds


def _made(terms: Mapping[Monomial, int], facts: Facts) -> Any:
    kept = tuple(sorted((factors, c) for factors, c in terms.items() if c))
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Size(kept, facts)


def _text(terms: Terms) -> str:
    return " + ".join("*".join((str(c), *map(str, factors))) for factors, c in terms) or "0"


def _hint(terms: Terms, hints: Values) -> int:
    def value(atom: Atom) -> int:
        if not atom.left:
            return int(hints[atom.name])
        left, right = _hint(atom.left, hints), _hint(atom.right, hints)
        return left // right if atom.name == "//" else left % right

    return sum(c * prod(map(value, factors)) for factors, c in terms)


def _bounds(terms: Terms, facts: Facts) -> tuple[int | None, int | None]:
    """Of a sum of products, counted in how much each symbol is above its least value: so the least
    value of a * b - b is seen."""
    low: int | None = 0
    high: int | None = 0
    for factors, c in _above_least(terms, facts):
        least, most = _product_bounds(factors, facts)
        if c < 0:
            least, most = most, least
        low = None if low is None or least is None else low + c * least
        high = None if high is None or most is None else high + c * most
    return low, high


def _above_least(terms: Terms, facts: Facts) -> Iterable[tuple[Monomial, int]]:
    total: dict[Monomial, int] = {}
    for factors, c in terms:
        expanded: dict[Monomial, int] = {(): c}
        for atom in factors:
            least = 0 if atom.left else facts.least[atom.name]
            more: dict[Monomial, int] = {}
            for known, k in expanded.items():
                more[(*known, atom)] = more.get((*known, atom), 0) + k
                if least:
                    more[known] = more.get(known, 0) + k * least
            expanded = more
        for product, k in expanded.items():
            total[product] = total.get(product, 0) + k
    return [(factors, k) for factors, k in total.items() if k]


def _product_bounds(factors: Monomial, facts: Facts) -> tuple[int | None, int | None]:
    """Of factors that are not negative; nothing is known where one may be."""
    low, high = 1, 1
    for atom in factors:
        least, most = _atom_bounds(atom, facts)
        if least is None or least < 0:
            return None, None
        low *= least
        high = None if high is None or most is None else high * most  # type: ignore[assignment]
    return low, high


def _atom_bounds(atom: Atom, facts: Facts) -> tuple[int | None, int | None]:
    if not atom.left:
        return 0, None  # above its least value
    (low, high), (least, most) = _bounds(atom.left, facts), _bounds(atom.right, facts)
    if least is None or least < 1:
        return None, None
    if atom.name == "%":
        return 0, None if most is None else most - 1
    below = None if low is None else (low // most if most is not None else min(low, 0))
    return below, None if high is None else max(high // least, high)


def _divided(a: Any, b: Any, facts: Facts) -> Any:
    """Quotient and remainder, rounded down. What b divides term by term leaves nothing to
    compute."""
    left, right = terms_of(a), terms_of(b)
    if left is None or right is None:
        raise TypeError(f"{a} // {b}: a size is divided by whole numbers")
    if b == 0:
        raise ZeroDivisionError(f"{a} by zero")
    if len(right) > 1:
        exact = _exactly(left, right)
        if exact is not None:
            return _made(exact, facts), 0
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for factors, c in left:
        quotient = _quotient(factors, c, right[0]) if len(right) == 1 else None
        if quotient is None:
            rest[factors] = c
        else:
            whole[quotient[0]] = quotient[1]
    if left == right:
        whole, rest = {(): 1}, {}
    if len(right) == 1 and not right[0][0] and rest:
        step = right[0][1]
        # (step * q + r) // step is q + r // step: what is a multiple in part stays small.
        for factors, c in list(rest.items()):
            if not factors:
                whole[()] = whole.get((), 0) + c // step
                rest[factors] = c % step
    remainder = _made(rest, facts)
    quotient_of = _made(whole, facts)
    if type(remainder) is not Size:
        divisor = _made(dict(right), facts)
        if type(divisor) is not Size:
            return quotient_of + remainder // divisor, remainder % divisor
        if remainder == 0:
            return quotient_of, 0
    low, high = bounds(remainder)
    least, _ = bounds(_made(dict(right), facts))
    if low is not None and low >= 0 and high is not None and least is not None and high < least:
        return quotient_of, remainder
    if low is not None and low >= 0 and less(remainder, _made(dict(right), facts)):
        return quotient_of, remainder
    kept = terms_of(remainder)
    assert kept, "a remainder of nothing was returned before"
    pieces = [_made({(Atom(name, kept, right),): 1}, facts) for name in ("//", "%")]
    return quotient_of + pieces[0], pieces[1]


def _exactly(left: Terms, right: Terms) -> dict[Monomial, int] | None:
    """A sum divided by another one, where it is a multiple of it: long division."""

    def order(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
        return len(term[0]), term[0]

    rest, found = dict(left), dict[Monomial, int]()
    leading = max(right, key=order)
    for _ in range(4 * len(left)):
        quotient = _quotient(*max(rest.items(), key=order), leading)
        if quotient is None:
            return None
        factors, c = quotient
        found[factors] = found.get(factors, 0) + c
        for other, k in right:
            product = tuple(sorted((*factors, *other)))
            rest[product] = rest.get(product, 0) - c * k
        rest = {product: k for product, k in rest.items() if k}
        if not rest:
            return found
    return None


def _quotient(factors: Monomial, c: int, by: tuple[Monomial, int]) -> tuple[Monomial, int] | None:
    """A product divided by another one that it is a multiple of."""
    left, (divisors, d) = list(factors), by
    if c % d:
        return None
    for atom in divisors:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left), c // d
