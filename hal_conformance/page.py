"""A certificate as one page of HTML that needs no other file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from hal.core.description import PERFORMANCE
from hal_conformance.band import band, better
from hal_conformance.catalog import GROUPS
from hal_conformance.certificate import counts
from hal_conformance.plots import COLOURS, against, bar
from hal_conformance.results import RED

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; vertical-align: top;
         border-bottom: 1px solid #e4e4e4; overflow-wrap: anywhere }
summary { cursor: pointer } code { font-size: .85em; overflow-wrap: anywhere }
pre { white-space: pre-wrap; margin: 0; font-size: .8rem }
"""


def page(table: Mapping[str, Any]) -> str:
    """The page of a certificate."""
    name = table["run"]["device"]
    sections = (_head, _cases, _capabilities, _performance, _numeric, _origin)
    body = "\n".join(part for section in sections for part in section(table))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}: conformance</title>\n<style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _head(table: Mapping[str, Any]) -> Iterator[str]:
    info = table["device"]
    yield f"<h1>{escape(table['run']['device'])}: conformance</h1>"
    yield f"<p>{escape(info['description'] if info else 'The device could not be opened.')}</p>"
    level = f"Level {table['level']} reached." if table["level"] else "No level reached."
    part = "Every case of the suite was run." if table["complete"] else "A part of the suite ran."
    said = ", ".join(f"{count} {outcome}" for outcome, count in table["summary"].items() if count)
    yield f"<p><strong>{level}</strong> {part} {len(table['cases'])} cases: {said}.</p>"
    yield bar([*table["summary"].items()])


def _cases(table: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Cases by group</h2>"
    for group, text in GROUPS.items():
        if mine := [case for case in table["cases"] if case["id"].startswith(f"{group}.")]:
            yield _group(f"{group}: {text}", mine)


def _group(title: str, cases: Sequence[Mapping[str, Any]]) -> str:
    found = counts(cases)
    said = ", ".join(f"{count} {outcome}" for outcome, count in found.items() if count)
    is_open = " open" if any(found[outcome.value] for outcome in RED) else ""
    rows = _rows(_case(case) for case in cases)
    head = f"<summary>{escape(title)}: {said} {bar([*found.items()])}</summary>"
    return (
        f"<details{is_open}>{head}{_table(('case', 'level', 'outcome', 'detail'), rows)}</details>"
    )


def _case(case: Mapping[str, Any]) -> tuple[str, ...]:
    outcome = case["outcome"]
    coloured = f'<span style="color:{COLOURS[outcome]}">{outcome}</span>'
    detail = f"<pre>{escape(case['detail'])}</pre>" if case["detail"] else ""
    return escape(case["id"]), escape(case["level"]), coloured, detail


def _capabilities(table: Mapping[str, Any]) -> Iterator[str]:
    if table["capabilities"]:
        has = [name for name, declared in table["capabilities"].items() if declared]
        lacks = [name for name, declared in table["capabilities"].items() if not declared]
        yield "<h2>Capabilities</h2>"
        yield f"<p>Declared: {escape(', '.join(has) or 'none')}.</p>"
        yield f"<p>Not declared: {escape(', '.join(lacks) or 'none')}.</p>"


def _performance(table: Mapping[str, Any]) -> Iterator[str]:
    if table["performance"]:
        yield "<h2>Declared and measured performance</h2>"
        yield "<p>The green band is what the contract allows; a point to the right is better.</p>"
        rows = _rows(_figure(**figure) for figure in table["performance"])
        yield _table(("figure", "declared", "measured", "measured against declared"), rows)


def _figure(key: str, declared: float, measured: float | None) -> tuple[str, ...]:
    name = f"{escape(key)}<br><small>{escape(PERFORMANCE[key])}</small>"
    if measured is None:
        return name, f"{declared:.4g}", "not measured", ""
    drawing = against(better(key, measured, declared), *band(key))
    return name, f"{declared:.4g}", f"{measured:.4g}", drawing


def _numeric(table: Mapping[str, Any]) -> Iterator[str]:
    if table["device"]:
        numeric = table["device"]["numeric"]
        yield "<h2>Numeric profile</h2>"
        flags = ", ".join(
            f"{name}: {'yes' if numeric[name] else 'no'}"
            for name in ("denormals", "fma", "deterministic")
        )
        yield f"<p>{flags}.</p>"
        ulp = _rows((escape(name), f"{bound:g}") for name, bound in numeric["ulp"].items())
        yield _table(("function of f32", "error in units in the last place"), ulp)
        adds = _rows((escape(k), escape(v)) for k, v in numeric["accumulate"].items())
        yield _table(("products of", "are added in"), adds)


def _origin(table: Mapping[str, Any]) -> Iterator[str]:
    run, plugin, suite = table["run"], table["plugin"], table["suite"]
    yield "<h2>Where this comes from</h2>"
    facts = {
        "plugin": f"{plugin['name']}: {plugin['distribution']} {plugin['version']}",
        "hash of the plugin's files": plugin["hash"],
        "suite": f"hal-accel {suite['version']}, contract version {table['contract']}",
        "hash of the suite": suite["hash"],
        "date": table["date"],
        "seeds": _seeds(run["seeds"]),
        "settings": ", ".join(f"{k}={v}" for k, v in run["settings"].items()) or "none",
        "chosen": run["chosen"],
        "seconds": f"{run['seconds']:.1f}",
        "hash of the certificate": table["hash"],
    }
    pairs = ((escape(key), f"<code>{escape(value)}</code>") for key, value in facts.items())
    yield _table(("what", "value"), _rows(pairs))


def _seeds(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _rows(rows: Iterable[Sequence[str]]) -> str:
    cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return "\n".join(f"<tr>{row}</tr>" for row in cells)


def _table(head: Sequence[str], rows: str) -> str:
    names = "".join(f"<th>{name}</th>" for name in head)
    return f"<table><thead><tr>{names}</tr></thead><tbody>\n{rows}\n</tbody></table>"
