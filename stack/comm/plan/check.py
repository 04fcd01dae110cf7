"""The proof of a program, before anything runs: every output is exactly the right reduction of
inputs, nothing deadlocks though no message is buffered, and no two unordered steps touch the same
memory, one of them writing."""

from __future__ import annotations

from hal.core.facts import dataclass
from hal.core.values import CollectiveKind
from stack.comm.plan.check_order import order_of
from stack.comm.plan.check_steps import check_header, check_steps
from stack.comm.plan.check_values import SymbolicRun, ranks_of
from stack.comm.plan.error import PlanError
from stack.comm.plan.go_on import GoOn, always
from stack.comm.plan.program import Op, Program


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of a program that was checked. `wide`: no partial sum is ever held in the
    element type, so the program is right for float16 and bfloat16 too."""

    wide: bool


def check(program: Program, go_on: GoOn = always) -> Proof:
    """The proof of a program. Raises PlanError with rank, step, chunk and reason."""
    check_header(program)
    memories = check_steps(program, go_on)
    order = order_of(program, go_on)
    if program.kind is CollectiveKind.BARRIER:
        # Raise unless every rank hears, through others too, from every other one.
        heard = [1 << rank for rank in order.rank_of]
        arrived = [1 << rank for rank in range(program.size)]
        for node in order.nodes:
            rank, _, step = order.step(program, node)
            for earlier in step.after:
                heard[node] |= heard[order.first[rank] + earlier]
            if step.op in (Op.RECV, Op.RECV_REDUCE):
                heard[node] |= heard[order.partner[node]]
            arrived[rank] |= heard[node]
        for rank, known in enumerate(arrived):
            if missing := ranks_of(~known & (1 << program.size) - 1):
                raise PlanError(
                    f"it leaves the barrier without a word from rank {missing[0]}", rank
                )
    run = SymbolicRun(program, order, memories, go_on)
    run.all_steps()
    run.check_results()
    return Proof(run.wide)
