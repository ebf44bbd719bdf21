"""Trees of leaves: whoever knows a sum for each level has all leaves but one, each where its number says."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.hybrid.gc import cot


def known_sums(bits: Tensor, sums: Tensor) -> Tensor:
    """The sums on the other side of the path, as the base transfers give them."""
    return torch.where(bits[:, :, None] > 0, sums[:, :, 0], sums[:, :, 1])


def grown() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each of the 16 places of the missing leaf twice: its bits and numbers, the leaves and the sums."""
    numbers = torch.arange(32) % 16
    bits = (numbers[:, None] >> torch.arange(4) & 1).to(torch.uint8)
    return bits, numbers, *cot.grow(prg.fresh().bytes(512).view(32, 16))


def test_a_punctured_tree_has_all_leaves_but_one() -> None:
    bits, numbers, leaves, sums = grown()
    made = cot.puncture(bits, known_sums(bits, sums))
    for j in range(32):
        for y in range(1, 16):
            assert torch.equal(made[j, y], leaves[j, y ^ int(numbers[j])])
    assert not made[:, 0].any()
    assert len({leaf.numpy().tobytes() for leaf in leaves.view(-1, 16)}) == 512


def test_a_sum_of_the_wrong_side_gives_other_leaves() -> None:
    """So the test above can fail."""
    bits, numbers, leaves, sums = grown()
    known = known_sums(bits, sums)
    known[5, 2] ^= 1
    made = cot.puncture(bits, known)
    wrong = [y for y in range(1, 16) if not torch.equal(made[5, y], leaves[5, y ^ int(numbers[5])])]
    assert wrong == [4, 8, 12]  # what the level brings, its children, and what the next level brings
