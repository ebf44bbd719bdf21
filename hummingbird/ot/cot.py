"""Correlated oblivious transfers between two parties: SoftSpoken OT (Roy, CRYPTO 2022), semi-honest, without a hash.

The sender has delta, and a key Q_i for transfer i; the receiver has a choice c_i and T_i = Q_i ^ c_i delta. delta is
the offset of a garbler's labels. If the evaluator knows its bit c_i when the circuit is garbled, the label of 0 of its
wire is Q_i, and T_i is the label of c_i. If it learns its bit p_i later, the transfer has a random choice e_i. The
evaluator sends p_i ^ e_i, and the garbler answers with L_i ^ Q_i ^ (p_i ^ e_i) delta, which is
kernels.cot.choose(L ^ Q, p ^ e, delta). XORed with T_i, that is the label L_i ^ p_i delta.

The set-up takes place once for a session, in two messages of `cost.COT_SET_UP` bytes, and takes about 20 ms on each
side:

    start = cot.SetUp()                                 the sender
    receiver, reply = cot.accept(start.message)         the receiver
    sender = start.finish(reply)                        the sender

Afterwards a transfer is a function of its number and these objects: calls in any order and in any process give the same
result. USE EACH NUMBER ONLY ONCE: two messages for one number reveal the sum of their choices, and two answers reveal
delta. The caller keeps track of used numbers; `numbers` returns how many a call takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from hummingbird import cost, prg
from hummingbird.errors import AgreementError, InputError
from hummingbird.kernels import cot, pack_bits
from hummingbird.kernels.checks import check_range, check_tensor
from hummingbird.kernels.cot import BLOCK, MOST_BLOCKS, SEED, TREES
from hummingbird.ot import base_ot
from hummingbird.prg import Stream

# Trees of 16 leaves: the receiver of a set-up knows all leaves, the sender all but one --------------------------------
#
# A node, 16 bytes, has two children, both halves of BLAKE2b(node): child s of node p on level l is node p + s 2^l of
# the next level, so that bit l of a leaf's number is the direction taken on level l (Goldreich, Goldwasser and Micali,
# 1986). The sender must not learn the leaf at delta_j. On each level, one base OT with the choice 1 - bit l of delta_j
# gives it the sum of the children on the other side of its path, and so the only one of them that it cannot compute.

LEVELS = 4


def grow(roots: Tensor) -> tuple[Tensor, Tensor]:
    """Grow 32 binary trees of seeds from their roots, uint8 (32, 16), to 16 leaves each.

    Returns the leaves, uint8 (32, 16, 16), and for each level the sums (XOR) of its left and of its right children,
    uint8 (32, 4, 2, 16).
    """
    nodes, sums = roots[:, None], []
    for _ in range(LEVELS):
        left, right = _children(nodes)
        sums.append(torch.stack([_sum(left), _sum(right)], 1))
        nodes = torch.cat([left, right], 1)
    return nodes, torch.stack(sums, 1)


def puncture(bits: Tensor, sums: Tensor) -> Tensor:
    """Compute all leaves of 32 trees of seeds but one in each: leaf number delta_j of tree j, which the sender must not
    learn.

    bits: the 4 bits of each delta_j, uint8 (32, 4). sums: for each level of a tree the sum (XOR) of the children on the
    side 1 - bit, uint8 (32, 4, 16).
    Returns uint8 (32, 16, 16): leaf x of tree j is at index x ^ delta_j, and index 0, for the missing leaf, has zeros.
    The code does not branch on bits. On every level, node x has the index x ^ delta_j. So index 0 is the path to the
    missing leaf, and index 2^l is the node that the sum of level l reveals.
    """
    nodes = torch.zeros(TREES, 1, SEED, dtype=torch.uint8)
    for level in range(LEVELS):
        left, right = _children(nodes)
        turn = bits[:, level, None, None] > 0
        on, off = torch.where(turn, right, left), torch.where(turn, left, right)  # the path's side, the other side
        on[:, 0], off[:, 0] = 0, 0  # their parent is the path's node, which is unknown
        off[:, 0] = sums[:, level] ^ _sum(off)
        nodes = torch.cat([on, off], 1)
    return nodes


def _children(nodes: Tensor) -> tuple[Tensor, Tensor]:
    data = nodes.numpy().tobytes()
    seeds = [data[at : at + SEED] for at in range(0, len(data), SEED)]
    both = b"".join([prg.derive(seed, "children", size=2 * SEED) for seed in seeds])
    pairs = torch.frombuffer(bytearray(both), dtype=torch.uint8).view(*nodes.shape[:2], 2, SEED)
    return pairs[:, :, 0], pairs[:, :, 1]


def _sum(nodes: Tensor) -> Tensor:
    return reduce(torch.bitwise_xor, nodes.unbind(1))


# ---------------------------------------------------------------------------------------------------------------------

_HINT = "both sides need the same net, options and release"


def message_bytes(count: int, random: bool) -> int:
    """Return the size in bytes of a receiver's message for `count` transfers.

    random: whether the choices are random.
    """
    return cost.cot_message(count, random)


def numbers(count: int) -> int:
    """Return how many of the session's transfer numbers are used up by a call for `count` transfers: a multiple of 128.

    The next call begins after these numbers.
    """
    return -(-count // BLOCK) * BLOCK


@dataclass(frozen=True, repr=False, eq=False)
class Receiver:
    """The receiver of oblivious transfers, the evaluator: in each transfer it gets the one of two keys that it chooses.

    It chooses by a bit, which the sender does not learn. `accept` makes this object.
    leaves: uint8 (32, 16, 16), the leaves of 32 trees of secret seeds, from which all messages and keys follow.
    """

    leaves: Tensor

    def random(self, first: int, count: int) -> tuple[bytes, Tensor, Tensor]:
        """Make transfers with random choices; return the message for the sender, the choices, and the chosen keys.

        first: number of the first transfer, a multiple of 128; each number may be used once. count: number of
        transfers.
        The message has 31/8 bytes for each transfer. The choices are uint8 (count,), the keys int64 (count, 2).
        """
        sums, keys = self._extend(first, count)
        choices = _bits(sums[0])[:count]
        return (sums[1:] ^ sums[0]).numpy().tobytes(), choices, keys

    def chosen(self, first: int, choices: Tensor) -> tuple[bytes, Tensor]:
        """Make transfers with given choices; return the message for the sender, and the chosen keys, int64 (count, 2).

        first: number of the first transfer, a multiple of 128; each number may be used once.
        choices: uint8 (count,) of zeros and ones. The message has 4 bytes for each transfer.
        """
        where = "ot.cot.chosen(choices)"
        check_tensor(where, choices, torch.uint8, self.leaves)
        if (choices > 1).any():
            raise InputError("a choice is neither 0 nor 1", where=where)
        sums, keys = self._extend(first, len(choices))
        packed = torch.zeros(sums.shape[1], dtype=torch.uint8)
        packed[: -(-len(choices) // 8)] = pack_bits(choices)
        return (sums ^ packed).numpy().tobytes(), keys

    def _extend(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        blocks = _blocks("ot.cot.Receiver", first, count)
        sums, keys = cot.receive(self.leaves, first // BLOCK, blocks)
        return sums, keys[:count]


@dataclass(frozen=True, repr=False, eq=False)
class Sender:
    """The sender of oblivious transfers, the garbler: it has two keys for each transfer, Q and Q ^ delta.

    The receiver gets one of them. `SetUp.finish` makes this object; `extend` computes the keys Q from it and from the
    receiver's message.
    delta: the difference of the two keys, the same in all transfers, int64 (2,); secret.
    leaves: the seeds of 32 trees, from `puncture`, uint8 (32, 16, 16); secret. The first of each tree is zeros, as the
    sender does not know that leaf.
    """

    delta: Tensor
    leaves: Tensor

    def extend(self, first: int, count: int, message: bytes, random: bool) -> Tensor:
        """Return the keys Q of `count` transfers, int64 (count, 2), from the receiver's message for these transfers.

        first: number of the first transfer. random: whether the receiver's choices are random. Any message of the right
        size gives keys. Raises AgreementError for another size.
        """
        blocks = _blocks("ot.cot.Sender", first, count)
        if len(message) != (size := message_bytes(count, random)):
            kind = "random" if random else "chosen"
            what = f"{count} transfers with {kind} choices take {size} bytes here, the receiver sent {len(message)}"
            raise AgreementError(what, where="ot.cot.Sender", hint=_HINT)
        corrections = torch.zeros((TREES, 16 * blocks), dtype=torch.uint8)
        if blocks:
            view = torch.frombuffer(bytearray(message), dtype=torch.uint8)
            corrections[int(random) :] = view.view(-1, 16 * blocks)
        return cot.send(self.leaves, self.delta, first // BLOCK, corrections)[:count]


def new_delta(stream: Stream) -> Tensor:
    """Draw a sender's secret, the offset between the labels of 0 and 1: int64 (2,), with lowest bit 1."""
    return stream.words(2) | torch.tensor([1, 0])


class SetUp:
    """The sender's side of the set-up of oblivious transfers, used once for a session.

    `message`, 8,192 bytes, goes to the receiver; `finish` takes the reply. The set-up draws the session's delta, the
    difference between the two labels of every wire.
    """

    def __init__(self) -> None:
        self._delta = new_delta(prg.fresh())
        self._bits = _bits(self._delta.view(torch.uint8))
        self._chooser = base_ot.Chooser(1 - self._bits)
        self.message = self._chooser.message

    def finish(self, reply: bytes) -> Sender:
        """Make the sender from the receiver's reply of 4,128 bytes. Raises InputError for another size or content."""
        if len(reply) != cost.COT_SET_UP[1]:
            what = f"expected {cost.COT_SET_UP[1]} bytes, got {len(reply)}"
            raise InputError(what, where="ot.cot.SetUp, the receiver's reply", hint=_HINT)
        keys = self._chooser.keys(reply[: cost.BASE_OT_ANSWER])
        hidden = torch.frombuffer(bytearray(reply[cost.BASE_OT_ANSWER :]), dtype=torch.uint8).view(BLOCK, 2, -1)
        sums = torch.where(self._bits[:, None] > 0, hidden[:, 0], hidden[:, 1]) ^ keys
        return Sender(self._delta, puncture(self._bits.view(TREES, -1), sums.view(TREES, -1, SEED)))


def accept(message: bytes) -> tuple[Receiver, bytes]:
    """Answer a sender's set-up message; returns the receiver, and the reply of 4,128 bytes.

    Raises InputError for another message.
    """
    answer, keys = base_ot.answer(message)
    roots = prg.fresh().bytes(TREES * SEED).view(TREES, -1)
    leaves, sums = grow(roots)
    return Receiver(leaves), answer + (sums.view_as(keys) ^ keys).numpy().tobytes()


def _blocks(where: str, first: int, count: int) -> int:
    """Return how many blocks of 128 transfers a call for `count` transfers takes.

    first: number of the first transfer. where: the place that the error names. Raises InputError if `first` is no
    multiple of 128, or a number is out of range.
    """
    check_range(f"{where}, count", count, 0, BLOCK * MOST_BLOCKS)
    blocks = numbers(count) // BLOCK
    check_range(f"{where}, first", first, 0, BLOCK * (MOST_BLOCKS - blocks))
    if first % BLOCK:
        hint = f"transfers come in blocks of {BLOCK}: leave numbers(count) for each call"
        raise InputError(f"number {first} is no multiple of {BLOCK}", where=f"{where}, first", hint=hint)
    return blocks


def _bits(octets: Tensor) -> Tensor:
    """Return the bits of n bytes, lowest first: uint8 (8 n,) of zeros and ones."""
    return (octets[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).view(-1)
