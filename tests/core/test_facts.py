"""Classes of `hal.core.facts` are those of the standard library, whose methods come sooner."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, fields, replace

import pytest

from hal.core import facts


def declared(dataclass, **options):
    """A class with every kind of field, and one that inherits from it."""

    @dataclass(**options)
    class Base:
        """Documented."""

        a: int
        b: list = field(default_factory=list, compare=False)
        c: str = field(default="c", repr=False)
        d: float = field(default=1.5, init=False)
        e: list = field(default_factory=list, init=False)

    @dataclass(**options)
    class Derived(Base):
        f: int = field(default=3, kw_only=True)
        told: int = field(init=False, compare=False, repr=False)

        def __post_init__(self):
            object.__setattr__(self, "told", self.a + self.f)

    return Base, Derived


OPTIONS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for eq in (False, True)
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_they_do_what_those_of_the_standard_library_do(options):
    ours, theirs = (declared(d, **options) for d in (facts.dataclass, dataclasses.dataclass))
    for _ in range(facts.FEW):  # at first without a compiled constructor
        assert seen_of(*ours) == seen_of(*theirs)


def seen_of(base, derived):
    """All that can be told of two classes and objects of theirs."""
    seen = []

    def note(of):
        try:
            found = of()
        except (TypeError, AttributeError, FrozenInstanceError) as error:
            found = type(error), str(error)
        seen.append(found)

    for cls, more in ((base, {}), (derived, {"f": 5})):
        x, y, z = cls(1, [2], **more), cls(1, **more), cls(2, c="d", **more)
        note(lambda cls=cls: [(f.name, f.init, f.compare) for f in fields(cls)])
        note(lambda cls=cls: (cls.__match_args__, getattr(cls, "__slots__", None)))
        for one in (x, y, z):
            note(lambda one=one: [getattr(one, f.name) for f in fields(one)])
            note(lambda one=one: repr(one).replace(hex(id(one)), "it"))
            note(lambda one=one: repr(replace(one, a=7)).partition(" at ")[0])
            note(lambda one=one: repr(copy.copy(one)).partition(" at ")[0])
            note(lambda one=one: setattr(one, "a", 2))
            note(lambda one=one: delattr(one, "c"))
            note(lambda one=one: hasattr(one, "c"))
        note(lambda x=x, y=y, z=z: (x == y, x == z, y == z, x == x, x == 1))
        note(lambda x=x, y=y: (hash(x) == hash(x), hash(x) == hash(y), hash(x) == id(x) >> 4))
        note(lambda cls=cls: cls())
        note(lambda cls=cls: cls(1, 2, 3, 4, 5))
        note(lambda cls=cls: cls(1, g=2))
    note(lambda: base(1) == derived(1))
    return seen


@facts.dataclass(frozen=True, slots=True)
class Kept:
    a: int
    b: tuple[int, ...] = ()


def test_they_are_kept_in_files():
    assert pickle.loads(pickle.dumps(Kept(1, (2,)))) == Kept(1, (2,))


@facts.dataclass(frozen=True, slots=True)
class Said:
    a: int

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 7


def test_what_a_class_says_itself_stays():
    assert Said(1) == 2
    assert hash(Said(3)) == 7


def test_an_object_within_itself_is_shown():
    @facts.dataclass
    class Knot:
        inner: list

    knot = Knot([])
    knot.inner.append(knot)
    assert repr(knot).endswith("Knot(inner=[...])")
