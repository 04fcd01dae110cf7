"""The table on disk comes back as it was, or is refused; it is there as a whole or not at all."""

import hashlib

import pytest

from hal.core.values import CollectiveKind as Kind
from stack.comm.choose.measured import (
    FORMAT,
    Measurement,
    measured_path,
    merged,
    read_measured,
    write_measured,
)
from stack.comm.plan.error import PlanError

ROWS = (
    Measurement(Kind.ALL_REDUCE, "ring/4", 1 << 20, 0.1 + 0.2),
    Measurement(Kind.BROADCAST, "binomial", 0, 1e-6),
)


def test_what_is_written_is_read(tmp_path):
    path = measured_path(tmp_path, "abc")
    assert read_measured(path, "abc") == ()
    write_measured(path, "abc", ROWS)
    write_measured(path, "abc", ROWS)
    assert read_measured(path, "abc") == ROWS
    assert [p.name for p in path.parent.iterdir()] == ["abc.measured"]


def test_a_damaged_table_is_refused(tmp_path):
    path = measured_path(tmp_path, "abc")
    write_measured(path, "abc", ROWS)
    whole = path.read_text()
    for damaged in (whole[:-1], whole.replace("ring", "rang"), whole[10:], ""):
        path.write_text(damaged)
        with pytest.raises(PlanError, match=r"abc\.measured is damaged, or no table .* remove it"):
            read_measured(path, "abc")


@pytest.mark.parametrize(
    "row",
    [
        "all-reduce ring/4 1048576",
        "all-reduce ring/4 1048576 0.1 0.2",
        "all-move ring/4 1048576 0.1",
        "all-reduce ring/4 many 0.1",
        "all-reduce ring/4 -1 0.1",
        f"all-reduce ring/4 {'9' * 5000} 0.1",
        "all-reduce ring/4 1048576 nan",
        "all-reduce ring/4 1048576 -0.1",
        "all-reduce ring/4 1048576 fast",
        "",
    ],
)
def test_a_sealed_table_with_a_wrong_row_is_refused_by_line(tmp_path, row):
    """Who writes a seal may have written nonsense."""
    path = measured_path(tmp_path, "abc")
    write_measured(path, "abc", ROWS)
    body = path.read_text().partition("\n")[2] + row + "\n"
    path.write_text(f"{FORMAT} {hashlib.sha256(body.encode()).hexdigest()}\n{body}")
    with pytest.raises(PlanError, match=r"abc\.measured, line 5: .* is no row of a table"):
        read_measured(path, "abc")


def test_a_table_that_is_no_text_is_refused(tmp_path):
    path = measured_path(tmp_path, "abc")
    write_measured(path, "abc", ROWS)
    path.write_bytes(b"\xff\xfe" + path.read_bytes())
    with pytest.raises(PlanError, match=r"abc\.measured is damaged"):
        read_measured(path, "abc")


def test_a_table_of_another_network_is_refused(tmp_path):
    path = measured_path(tmp_path, "abc")
    write_measured(path, "abd", ROWS)
    with pytest.raises(PlanError, match="is of network abd, not of network abc"):
        read_measured(path, "abc")


def test_new_rows_replace_old_ones():
    faster = Measurement(Kind.ALL_REDUCE, "ring/4", 1 << 20, 0.1)
    other = Measurement(Kind.ALL_REDUCE, "ring/4", 1 << 21, 0.2)
    assert merged(ROWS, [other, faster]) == (faster, other, ROWS[1])
