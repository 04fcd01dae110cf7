"""The figures of the chip: each has its source, and what depends on one moves with it."""

import pytest
from hal_plugin_sunway import ring
from hal_plugin_sunway.allocation import direct_cycles, pooled_cycles
from hal_plugin_sunway.bench import Bench
from hal_plugin_sunway.chip import TAGS, changed
from hal_plugin_sunway.figures import Row, page, step_sizes
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.errors import InvalidCall

GROUPS = 6


def test_every_figure_has_a_source_and_a_tag(chip):
    for figure in chip.figures.values():
        assert figure.source, figure
        assert figure.tag in TAGS, figure


def test_a_changed_figure_is_a_free_one(chip):
    other = changed(chip, "banks=64, hop_cycles=5")
    assert (other["banks"], other["hop_cycles"]) == (64, 5)
    assert other.figures["banks"].tag == "free"
    assert chip["banks"] != 64
    assert changed(chip, "") is not None


@pytest.mark.parametrize("text", ["bank=3", "banks", "banks=many"])
def test_an_unknown_figure_is_refused(chip, text):
    with pytest.raises(InvalidCall, match="bank"):
        changed(chip, text)


MOVES = {
    "read_cycles=380": (lambda b: b.dma(8), 1.3, 1.6),
    "put_nbytes_cycle=9.4": (lambda b: b.dma_rate(1 << 17, put=True, reps=2), 0.49, 0.55),
    "lost_share=0.533": (lambda b: b.dma_rate(1 << 15, 64, reps=1), 0.45, 0.65),
    "rma_cycles=196.96": (lambda b: b.rma(8, 1), 1.9, 2.1),
    "rma_column_cycles=39.65": (lambda b: b.rma(8, 7), 1.7, 2.2),
    "fp64_flop_cycle=8": (lambda b: b.matmul_rate(768), 0.4, 0.75),
    "path_cycles=466": (lambda b: b.dma(8), 1.4, 1.7),
    "get_nbytes_cycle=8.9": (lambda b: b.dma_rate(1 << 17, reps=2), 0.49, 0.55),
    "memory_nbytes_s=25.6e9": (lambda b: b.dma_rate(1 << 15, 64, reps=1), 0.45, 0.6),
    "write_row_cycles=0": (lambda b: b.dma_rate(1 << 15, 64, put=True, reps=1), 1.2, 1.6),
    "partial_line_cycles=88": (lambda b: b.dma(128, 64, put=True, offset=4), 1.7, 2.1),
    "request_cycles=0": (lambda b: b.dma_rate(128, 64), 1.5, 2.5),
    "row_open_cycles=40": (
        lambda b: b.dma_rate(4096, 64, blocks=(128, 262016), apart=8192),
        0.15,
        0.4,
    ),
    "rma_row_cycles=40": (lambda b: b.rma(8, 63), 1.7, 2.0),
    "rma_nbytes_cycle=12.8": (lambda b: b.rma(1 << 16, 1, kind=1), 1.8, 2.1),
}


@pytest.mark.parametrize("text", MOVES)
def test_what_depends_on_a_figure_moves_with_it(chip, bench, text):
    measure, low, high = MOVES[text]
    with Bench(changed(chip, text), 1 << 30) as other:
        assert low < measure(other) / measure(bench) < high


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 1 << 13).map(lambda n: 4 * n),
    st.sampled_from((1, 2, 8, 64)),
    st.booleans(),
    st.integers(0, 31).map(lambda n: 4 * n),
)
def test_laws_of_a_transfer(chip, bench, nbytes, active, put, offset):
    cycles = bench.dma(nbytes, active, put, reps=2, offset=offset)
    assert cycles >= chip["path_cycles"]
    memory = chip["memory_nbytes_s"] / chip["cpe_hz"]
    queued = active * chip["write_queue_lines"] * chip["line_nbytes"] if put else 0
    assert max(nbytes * active - queued, 0) / cycles <= memory
    more = bench.dma(nbytes + 4096, active, put, reps=2, offset=offset)
    assert more > 0.98 * cycles  # what is larger takes no less, but for another order of turns


def test_compute_takes_what_the_slower_pipe_takes(chip, bench):
    work = bench.pipeline((1024, 1024), 4, 1000, 2)
    assert work == 4000
    with Bench(changed(chip, "fp64_flop_cycle=32")) as twice:
        assert twice.pipeline((1024, 1024), 4, 1000, 2) == 2000


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 16).map(lambda n: 1024 * n),
    st.integers(1, 16).map(lambda n: 1024 * n),
    st.integers(2500, 6000),
)
def test_a_pipeline_that_computes_most_takes_that_and_one_tile_of_the_rest(bench, get, put, work):
    tiles = 48
    alone = [bench.pipeline((get, put), tiles, work, stage) for stage in (1, 2, 4)]
    law = max(alone) + (sum(alone) - max(alone)) / tiles
    found = bench.pipeline((get, put), tiles, work, 7)
    assert found == pytest.approx(law, rel=0.05)


PUBLISHED = ring.Remedies()


def share(chip, traffic, remedies=PUBLISHED):
    return ring.flow(chip, traffic, remedies).nbytes_cycle


def test_one_controller_gives_a_sixth_and_turns_give_all(chip):
    own = share(chip, ring.own(GROUPS, 60, 4096))
    assert share(chip, ring.to_one(GROUPS, 60, 4096)) == pytest.approx(own / 6, rel=0.05)
    assert share(chip, ring.interleaved(GROUPS, 60, 4096)) == pytest.approx(own, rel=0.1)


NARROW = "link_nbytes_cycle=16"
ROWS = "row_switch_cycles=40,queue_requests=60"
REMEDIES = {
    "shortest_path": (NARROW, ring.own(GROUPS, 60, 4096, shift=1), 2.0),
    "scheduling": (
        "row_switch_cycles=40,queue_requests=60",
        ring.interleaved(GROUPS, 120, 512),
        1.2,
    ),
    "flow_control": ("", ring.to_one(GROUPS, 60, 512), 1.2),
    "merging": ("", ring.own(GROUPS, 60, 128), 1.5),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_each_remedy_helps_against_its_congestion(chip, name):
    figures, traffic, gain = REMEDIES[name]
    other = changed(chip, figures)
    assert share(other, traffic) > gain * share(other, traffic, ring.Remedies(**{name: False}))


def test_flow_control_leaves_no_request_refused(chip):
    traffic = ring.to_one(GROUPS, 60, 512)
    assert ring.flow(chip, traffic, ring.Remedies()).refused == 0
    assert ring.flow(chip, traffic, ring.Remedies(flow_control=False)).refused > 0


def test_every_byte_arrives_whatever_the_remedies(chip):
    for on in range(16):
        remedies = ring.Remedies(*(bool(on >> i & 1) for i in range(4)))
        for traffic in (ring.to_one(GROUPS, 9, 128, 3), ring.interleaved(GROUPS, 9, 128)):
            assert ring.flow(chip, traffic, remedies).nbytes == GROUPS * 9 * 128


def test_a_pool_serves_a_repeated_step_without_the_system(chip):
    sizes = step_sizes()
    pooled = pooled_cycles(chip, sizes, held=sizes)
    assert pooled == len(sizes) * chip["pool_hit_cycles"]
    assert pooled_cycles(chip, sizes, held=()) == direct_cycles(chip, "dynamic", sizes)
    assert direct_cycles(chip, "static", sizes) < direct_cycles(chip, "dynamic", sizes)


def test_the_pools_gain_moves_with_the_figures_of_allocation(chip):
    sizes = step_sizes()

    def gain(text):
        other = changed(chip, text)
        return direct_cycles(other, "dynamic", sizes) / pooled_cycles(other, sizes, held=sizes)

    assert gain("") > 1e4
    assert gain("pool_hit_cycles=120") == gain("") / 2
    assert 0.45 < gain("dynamic_page_cycles=1000") / gain("") < 0.6


def test_the_page_tells_what_is_missed(chip):
    text = page(chip, [Row("a", "x", 100, 104, 0.05, "s"), Row("b", "x", 100, 106, 0.05, "s")])
    assert "| a | x | 100 | 104 | 5% | pass | s |" in text
    assert "| **fail** |" in text
    assert "1 of 2 pass." in text
