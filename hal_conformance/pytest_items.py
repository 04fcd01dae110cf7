"""The cases as items of pytest, run in child processes as `hal conform` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from hal.core.errors import HalError
from hal_conformance.conform import Request, conform
from hal_conformance.judge import Outcome, Result
from hal_conformance.plan import Choice, chosen, level_named
from hal_conformance.results import RED


class NotGreen(Exception):
    """A case is red; the text is its outcome and detail."""


class CaseItem(pytest.Item):
    """One case."""

    def __init__(self, name: str, parent: pytest.File, run: _Run) -> None:
        super().__init__(name, parent)
        self._run = run

    def runtest(self) -> None:
        """Raise what the case's result says."""
        result = self._run.result(self)
        if result.outcome is Outcome.UNSUPPORTED:
            pytest.skip(result.detail)
        if result.outcome is Outcome.XFAIL:
            pytest.xfail(result.detail)
        if result.outcome in RED:
            raise NotGreen(f"{result.outcome.value}: {result.detail}")

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str:
        """The detail alone in any style; the stack of this process says nothing."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[str, None, str]:
        """Where the case stands: its id."""
        return str(self.path), None, self.name


class _Run:
    """A run of the items that pytest selected, which goes on as results are asked for."""

    def __init__(self, device: str, choice: Choice) -> None:
        self._device = device
        self._choice = choice
        self._found: dict[str, Result] = {}
        self._results: Iterator[Result] | None = None

    def result(self, item: pytest.Item) -> Result:
        """The result of an item's case."""
        if self._results is None:
            self._results = self._begin(item.session.items)
        while item.name not in self._found:
            result = next(self._results)
            self._found[result.id] = result
        return self._found[item.name]

    def _begin(self, items: list[pytest.Item]) -> Iterator[Result]:
        ids = frozenset(item.name for item in items if isinstance(item, CaseItem))
        request = Request(self._device, self._choice.only(ids))
        return (result for group in conform(request) for result in group.results)


def items(catalog: pytest.File) -> Iterator[CaseItem]:
    """An item for each case that the options choose."""
    options: Mapping[str, str] = vars(catalog.config.option)
    try:
        level = level_named(options["hal_level"])
        choice = Choice(level, timed=not options["hal_no_timed"])
        cases = chosen(choice)
    except HalError as error:
        raise pytest.UsageError(str(error)) from error
    run = _Run(options["hal_device"], choice)
    for case in cases:
        yield CaseItem.from_parent(catalog, name=case.id, run=run)
