"""Which nodes get a buffer, which of them share a kernel, and how axes are split for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hal.tile.node import Node
from stack.compiler.graph.access import Materialise
from stack.compiler.graph.attention import read_attention
from stack.compiler.graph.cluster import Cluster
from stack.compiler.graph.fuse import Fusion, root_needs
from stack.compiler.graph.operands import read_operands
from stack.compiler.graph.ordered import read_ordered
from stack.compiler.graph.roots import OWN_KERNEL, PUT_TOGETHER, Home, base, place
from stack.compiler.graph.saved import choose_roots
from stack.compiler.program import GraphRequest, NeedsPlainSizes


def fuse(request: GraphRequest, *, moves: bool = False) -> tuple[Fusion, list[int]]:
    """Clusters whose every view can be expressed, and the sizes in bytes of the temporaries. With
    `moves` scatters write their results in other orders.

    What cannot be expressed gets a buffer, and the choice of roots starts again; what does not see
    the new buffers stays. Raises NeedsPlainSizes where sizes are data and that does not help.
    """
    extra: set[Node] = set()
    alone: dict[Node, Cluster] = {}
    needs: dict[Node, list[Node]] = {}
    homes: dict[Node, Home] = {}
    while True:
        roots = choose_roots(request, extra)
        before, was_needed = dict(homes), needs
        placed, temps = place(request, roots)
        # Clusters look for the places of what they read here.
        homes.clear()
        homes.update(placed)
        needs = root_needs(roots)
        alone = {
            root: cluster
            for root, cluster in alone.items()
            if needs.get(root) == was_needed[root]
            and all(homes[n].lies_like(before[n]) for n in (root, *needs[root]))
        }
        computed = [r for r in roots if r.op not in ("input", *PUT_TOGETHER) and r.type.size]
        wanted = _add_missing(alone, computed, homes)
        if not wanted:
            updates = [(base(request.outputs[o]), request.inputs[i]) for o, i in request.updates]
            own = {root: alone[root] for root in computed}
            return Fusion(own, needs, homes, updates, moves=moves), temps
        if wanted <= extra:
            said = f"views that cannot be read even from buffers: {wanted}"
            raise AssertionError(said) if request.facts is None else NeedsPlainSizes(said)
        extra |= wanted


def _add_missing(
    alone: dict[Node, Cluster], computed: Sequence[Node], homes: Mapping[Node, Home]
) -> set[Node]:
    """Add a cluster for each root that has none; the nodes without whose buffers some have none.

    Kernels of their own come first, because it is they that ask for buffers.
    """
    for own_kernel in (True, False):
        wanted: set[Node] = set()
        for number, root in enumerate(computed):
            if root in alone:
                alone[root].number = number
            elif (root.op in OWN_KERNEL) is own_kernel:
                found = _alone(number, root, homes)
                if isinstance(found, Cluster):
                    alone[root] = found
                else:
                    wanted |= _to_store(root, found)
        if wanted:
            return wanted
    return set()


def _to_store(root: Node, want: Materialise) -> set[Node]:
    """What needs a buffer so that the root can be computed: the view that cannot be read, or
    whatever is read, where the root's place and its views want loops that do not fit."""
    if want.node is not None:
        return {want.node}
    return {
        s
        for s in root.srcs[: 4 if root.op == "attention_gradients" else 3]
        if s.op not in ("const", "arange")
    }


def _alone(number: int, root: Node, homes: Mapping[Node, Home]) -> Cluster | Materialise:
    cluster = Cluster.of(number, root, homes)
    if isinstance(cluster, Materialise):
        return cluster
    found: object = None
    match cluster.kind:
        case "matmul":
            found = read_operands(cluster, homes)
        case "attention":
            found = read_attention(cluster, homes)
        case "scan" | "scatter":
            found = read_ordered([root], homes)
    return found if isinstance(found, Materialise) else cluster


def stored_roots(request: GraphRequest, fusion: Fusion) -> frozenset[Node]:
    """The roots that something outside their own loop reads."""
    stored = {base(o) for o in request.outputs}
    for root, needs in fusion.needs.items():
        cluster = fusion.of.get(root)
        stored.update(n for n in needs if cluster is None or fusion.of.get(n) is not cluster)
    return frozenset(stored)
