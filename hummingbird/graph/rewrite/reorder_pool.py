"""A ReLU and the max pooling behind it change places: max(relu(a), relu(b)) = relu(max(a, b)), for every a and b.

The pooling costs what it did, and the ReLU is computed of what it leaves: a quarter of the values behind windows of
2 x 2. Where anything else reads the ReLU, both stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hummingbird.graph.steps import Ref, Step, refs

_POOLS = "max_pool", "adaptive_max_pool"


def pools_first(steps: Sequence[Step]) -> tuple[list[Step], dict[str, list[str]]]:
    """The steps with ReLUs behind max poolings where they were before them; and the ReLUs that each pooling, by name,
    has changed places with. The values of all other steps, and every name, stay the same.
    """
    steps, passed = list(steps), dict[str, list[str]]()
    readers = Counter(ref.index for step in steps for ref in refs(step.inputs))
    while found := _next(steps, readers):
        relu, pool = found
        first, second = steps[relu], steps[pool]
        # The pooling stands where its only input stood, so no other step's reference changes.
        steps[relu], steps[pool] = replace(second, inputs=first.inputs), replace(first, inputs=(Ref(relu),))
        passed.setdefault(second.name, []).append(first.name)
    return steps, passed


def _next(steps: Sequence[Step], readers: Counter[int]) -> tuple[int, int] | None:
    """Places of a ReLU and of the max pooling that alone reads it, if there are any."""
    for pool, step in enumerate(steps):
        if step.op in _POOLS:
            (source,) = refs(step.inputs)
            if steps[source.index].op == "relu" and readers[source.index] == 1:
                return source.index, pool
    return None
