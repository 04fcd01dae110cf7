"""What slave-core programs compute: transfers, broadcasts, synchronisation, LDM, vectors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TAKE = """
struct args { long grid[3]; double *out; double *in; long a, b, c; };
__thread_local double x[4096] __attribute__((aligned(64))), y[4096] __attribute__((aligned(64)));
__thread_local athread_rply_t r, s;
void put(struct args *p, double *from) { athread_dma_put(p->out + 64 * _PEN, from, 64 * 8); }
"""
ROWS, COLUMNS = np.divmod(np.arange(64), 8)


def filled(value):
    """What `x[i] = value` for each i gives, of a value for each CPE."""
    return np.repeat(np.asarray(value, float)[:, None], 64, axis=1)


def test_every_cpe_knows_its_place(run):
    text = """void f(void *v) {
        for (int i = 0; i < 64; i++) x[i] = 100 * _ROW + 10 * _COL + _PEN;
        put(v, x);
    }"""
    assert (run(TAKE + text) == filled(100 * ROWS + 10 * COLUMNS + np.arange(64))).all()


def test_ldm_is_private_and_initial_values_are_there(run):
    text = """__thread_local double own = 7;
    void f(void *v) {
        own += _PEN;
        athread_ssync_array();
        for (int i = 0; i < 64; i++) x[i] = own;
        put(v, x);
    }"""
    for _ in range(2):  # a second launch begins with the initial value again
        assert (run(TAKE + text) == filled(7 + np.arange(64))).all()


def test_a_variable_that_is_set_to_zero_is_zero_whatever_ran_before(run):
    dirty = "void f(void *v) { for (int i = 0; i < 4096; i++) x[i] = y[i] = 7; put(v, x); }"
    assert (run(TAKE + dirty) == 7).all()
    text = """__thread_local long count = 0;
    __thread_local double known[64] = {0};
    void f(void *v) {
        count++, known[5] += 1;
        x[0] = count, x[1] = known[5], x[2] = known[6];
        put(v, x);
    }"""
    for _ in range(2):
        assert (run(TAKE + text)[:, :3] == [1, 1, 0]).all()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 8).map(lambda n: 4 * n),
    st.integers(0, 9).map(lambda n: 4 * n),
)
def test_strided_transfers_take_blocks_with_gaps(bench, blocks, bsize, gap):
    data = np.random.default_rng(blocks).integers(0, 255, 4096).astype(np.uint8)
    text = """#include <slave.h>
    struct args { long grid[3]; char *in, *out; long len, bsize, gap; };
    __thread_local char x[4096];
    void f(void *v) {
        struct args *p = v;
        if (_PEN) return;
        athread_dma_get_stride(x, p->in, p->len, p->bsize, p->gap);
        athread_dma_put(p->out, x, p->len);
        athread_dma_put_stride(p->out + 4096, x, p->len, p->bsize, p->gap);
    }"""
    source, sink = bench.array(data), bench.space(8192)
    bench.run("f", [source, sink, blocks * bsize, bsize, gap], text)
    found = bench.view(sink, np.uint8).copy()
    bench.give(source), bench.give(sink)
    at = (np.arange(blocks)[:, None] * (bsize + gap) + np.arange(bsize)).ravel()
    assert (found[: at.size] == data[at]).all()
    spread = np.zeros(4096, np.uint8)
    spread[at] = data[at]
    assert (found[4096:] == spread).all()


@pytest.mark.parametrize(
    ("call", "root"),
    [
        ("athread_dma_bcast_coll(x, p->in, 512);", lambda pen: 0 * pen),
        ("athread_dma_row_bcast_coll(x, p->in + _ROW, 512);", lambda pen: pen // 8),
        ("athread_dma_col_bcast_coll(x, p->in + _COL, 512);", lambda pen: pen % 8),
    ],
)
def test_collective_broadcasts_from_main_memory(bench, run, call, root):
    source = bench.array(np.arange(128.0))
    text = f"void f(void *v) {{ struct args *p = v; {call} put(p, x); }}"
    found = run(TAKE + text, source)
    bench.give(source)
    assert (found == root(np.arange(64))[:, None] + np.arange(64)).all()


@pytest.mark.parametrize("mode", ["row", "col"])
def test_a_broadcast_counts_the_reply_of_everybody_who_receives(bench, run, mode):
    source = bench.array(np.arange(64.0))
    text = """void f(void *v) {
        struct args *p = v;
        r = 0;
        for (int i = 0; i < 64; i++) x[i] = -1;
        athread_ssync_array();
        if (_PEN == 9) athread_dma_%s_ibcast(x, p->in, 512, &r);
        if (%s == 1) athread_dma_wait_value(&r, 1);
        athread_ssync_array();
        put(p, x);
    }"""
    place = {"row": "_ROW", "col": "_COL"}[mode]
    found = run(TAKE + text % (mode, place), source)
    bench.give(source)
    receives = {"row": ROWS, "col": COLUMNS}[mode] == 1
    assert (found == np.where(receives[:, None], np.arange(64), -1)).all()


SEND = "for (int i = 0; i < 64; i++) x[i] = _PEN, y[i] = -1; r = s = 0; athread_ssync_array();"


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (
            "athread_rma_iput(x, &s, 512, (_PEN + 5) % 64, y, &r); athread_rma_wait_value(&s, 1);"
            "athread_rma_wait_value(&r, 1);",
            (np.arange(64) - 5) % 64,
        ),
        (
            "athread_rma_iget(y, &s, 512, 63 - _PEN, x, &r); athread_rma_wait_value(&s, 1);"
            "athread_rma_wait_value(&r, 1);",
            63 - np.arange(64),
        ),
        ("athread_rma_put(x, 512, _PEN ^ 1, y, &r); athread_ssync_array();", np.arange(64) ^ 1),
        ("athread_rma_get(y, 512, 0, x, &r);", 0 * ROWS),
        ("athread_rma_row_bcast_coll(y, x, 512, 3);", 8 * ROWS + 3),
        ("athread_rma_col_bcast_coll(y, x, 512, 2);", 16 + COLUMNS),
        ("athread_rma_bcast_coll(y, x, 512, 17);", 17 + 0 * ROWS),
        (
            "if (_PEN == 8) athread_rma_row_bcast(y, x, 512, &r); athread_ssync_array();",
            np.where(ROWS == 1, 8, -1),
        ),
        (
            "if (_PEN == 5) { athread_rma_col_imcast(y, x, 512, &s, 0x24, &r);"
            " athread_rma_wait_value(&s, 1); } athread_ssync_array();",
            np.where((COLUMNS == 2) | (COLUMNS == 5), 5, -1),
        ),
    ],
)
def test_messages_between_scratchpads(run, call, wanted):
    text = f"void f(void *v) {{ {SEND} {call} put(v, y); }}"
    assert (run(TAKE + text) == filled(wanted)).all()


def test_a_synchronisation_takes_all_to_the_latest(run):
    text = """void f(void *v) {
        athread_work_f64(16.0 * 1000 * _PEN);
        if (_ROW < 4) athread_ssync_row();
        x[0] = athread_stime_cycle();
        put(v, x);
    }"""
    found = run(TAKE + text)[:, 0]
    rows = found.reshape(8, 8)
    assert (rows[:4] == rows[:4, :1]).all()  # each row leaves together
    assert (np.diff(rows[:4, 0]) == 8000).all()  # after its last CPE
    assert (np.diff(found[32:]) == 1000).all()  # the others go their own way


def test_vectors_compute_as_numbers_do(run):
    text = """void f(void *v) {
        doublev8 a, b, c;
        for (int i = 0; i < 8; i++) x[i] = i + _PEN, x[8 + i] = 2 * i;
        simd_load(a, x);
        simd_loadu(b, x + 8);
        c = simd_vmas(a, b, a);
        simd_store(c, y);
        y[8] = simd_reduc_plusd(c);
        put(v, y);
    }"""
    found, i = run(TAKE + text), np.arange(8.0)
    wanted = (i + np.arange(64)[:, None]) * (2 * i + 1)
    assert (found[:, :8] == wanted).all()
    assert (found[:, 8] == wanted.sum(1)).all()


def test_ldm_malloc_gives_places_apart_and_takes_them_back(run):
    text = """void f(void *v) {
        double *a = ldm_malloc(512), *b = ldm_malloc(512);
        for (int i = 0; i < 64; i++) a[i] = _PEN, b[i] = -1;
        ldm_free(b, 512);
        x[0] = ldm_malloc(512) == b;
        put(v, a);
    }"""
    assert (run(TAKE + text) == filled(np.arange(64))).all()


def test_equal_runs_take_equal_time(bench):
    assert len({bench.dma(1000, 64, offset=4, reps=3) for _ in range(3)}) == 1


@pytest.mark.slow
@pytest.mark.turns
def test_the_matrix_product_is_one(bench):
    n, generator = 768, np.random.default_rng(1)
    a, b = (generator.integers(-4, 5, (n, n)).astype(float) for _ in range(2))
    slabs = bench.array(a), bench.array(b), bench.space(a.nbytes)
    bench.matmul(*slabs, n, half=False, only_time=False)
    found = bench.view(slabs[2], float).reshape(n, n).copy()
    for slab in slabs:
        bench.give(slab)
    assert (found == a @ b).all()


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("fused", [False, True])
def test_attention_is_what_its_formula_says(bench, fused):
    n, generator = 1024, np.random.default_rng(2)
    q, k, v = (generator.standard_normal((n, 64)).astype(np.float32) for _ in range(3))
    q /= 8
    slabs = [*map(bench.array, (q, k, v)), bench.space(q.nbytes), bench.space(n * n * 4)]
    bench.attention(slabs, n, fused, only_time=False)
    found = bench.view(slabs[3], np.float32).reshape(n, 64).copy()
    for slab in slabs:
        bench.give(slab)
    weights = np.exp(q.astype(float) @ k.T)
    wanted = weights @ v / weights.sum(1, keepdims=True)
    assert np.abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize("program", ["matmul", "attention"])
def test_what_a_program_takes_does_not_depend_on_its_arithmetic(bench, program):
    def cycles(only_time):
        n = 768 if program == "matmul" else 1024
        slabs = [bench.space(n * n * 8) for _ in range(5)]
        if program == "matmul":
            took = bench.matmul(*slabs[:3], n, half=False, only_time=only_time).cycles
        else:
            took = bench.attention(slabs, n, fused=True, only_time=only_time).cycles
        for slab in slabs:
            bench.give(slab)
        return took

    assert cycles(True) == cycles(False)
