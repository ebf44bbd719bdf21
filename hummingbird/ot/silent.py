"""Silent correlated transfers: millions follow from some thousand and a short message. Semi-honest, without a check.

    iteration      2^k base transfers are the secret of a code, t d more are used up, and t 2^d transfers are made
    extension      the messages of an iteration: the receiver's, t d bits, and the sender's answer, t d blocks

Ferret (Yang, Weng, Lan, Zhang and Wang, CCS 2020) with the trees of kernels/cot.py, which has the equations. For each
of t trees the receiver draws a path: the place of a choice that is 1 among 2^d choices. By transfer i of a tree, with
keys Q, Q ^ delta and T and choice c, it gets the sum of the nodes on the other side of bit i of its path:

    the receiver sends b = c ^ bit ^ 1    the sender answers Q ^ b delta ^ sum    with ^ T, that is the sum it may learn

The code's outputs are transfers with random choices. The last ones of an iteration are the base of the next one; the
first base comes from SoftSpoken OT (cot.py). Both sides make an iteration's transfers in order, a tree at a time, when
they are taken. So an iteration holds a table of 2^k blocks, and d blocks for each tree: 2.2 MiB for the larger size.

    asked = receiver.ask(extension)                      goes to the sender
    answer = sender.answer(extension, asked)             goes to the receiver
    receiver.learn(answer)
    sender.take(1000), receiver.take(1000)               keys, and keys with the choice in their lowest bit

A `CotPool` counts what is taken: both sides and the price of a call follow it.

Keys, noise, roots and tables are fresh for each connection and direction, and are never stored. No transfer is used
twice: numbers of trees and of outputs count on through all iterations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import kernels, prg
from hummingbird.cost import cot_message, packed
from hummingbird.errors import AgreementError
from hummingbird.kernels.cot import SEED, choose, receive_silent, send_silent, tree_sums
from hummingbird.ot import cot

# The parameters -------------------------------------------------------------------------------------------------------


class LpnSet(NamedTuple):
    """The size of an iteration: learning parity with regular noise of weight t, 2^k unknown bits, t 2^d samples.

    trees: t. log_table: k. depth: d, the levels of a tree.
    """

    trees: int
    log_table: int
    depth: int

    @property
    def outputs(self) -> int:
        """The number of transfers that an iteration makes, with the base of the next one."""
        return self.trees << self.depth

    @property
    def used(self) -> int:
        """The number of transfers that the trees of an iteration use up."""
        return self.trees * self.depth

    @property
    def base(self) -> int:
        """The number of transfers from which an iteration starts."""
        return (1 << self.log_table) + self.used


# 128 bits of security by the estimates of the known attacks on regular noise (Gauss, information set decoding,
# algebraic attacks, and hybrids of both): a hybrid attack is the best one, with 128.2 bits for the last set. At a given
# k more samples help it, so that t is the largest number of trees that it allows. emp-ot has these sets since May 2026.
# The sets of Ferret's paper (2020) have less than 128 bits by these attacks, and are not used. The code of ten blocks
# for each output is Ferret's; dual codes, which send less, rest on younger assumptions.
SETS = (LpnSet(850, 16, 10), LpnSet(1170, 17, 11), LpnSet(1520, 18, 12), LpnSet(1900, 19, 13))

# Iterations grow to the last of these. The larger sets send 0.4 and 0.2 bits for a transfer, in place of 0.74. But
# their tables of 4 and 8 MiB do not stay in a second-level cache: a ReLU took 0.2 and 1 us more with both parties on
# one host (docs/pair.md), which is more than the bits take on a link of 50 Mb/s.
SIZES = SETS[:2]


# What is made and used ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extension:
    """The messages that begin an iteration.

    size: the iteration's. base: how many transfers SoftSpoken OT makes for it; 0 if the iteration before makes them.
    """

    size: LpnSet
    base: int = 0

    @property
    def asked(self) -> int:
        """Bytes of the receiver's message."""
        return (cot_message(self.base, random=True) if self.base else 0) + packed(self.size.used)

    @property
    def answered(self) -> int:
        """Bytes of the sender's answer."""
        return SEED * self.size.used

    @property
    def bits(self) -> int:
        """Bits of both messages."""
        return 8 * (self.asked + self.answered)


@dataclass(frozen=True)
class CotPool:
    """How many silent transfers of one direction are left: arithmetic that both sides and the price of a call follow.

    The first iteration is the smallest, and each next one a size larger.
    size: number of the iteration's size in `SIZES`; -1 before the first one. left: transfers that it has not given yet.
    """

    size: int = -1
    left: int = 0

    def drawn(self, count: int) -> CotDraw:
        """Return how `count` transfers are drawn."""
        parts, extensions, at = list[int](), list[Extension](), self
        while count > at.free:
            size = SIZES[at._next]
            parts.append(at.free)
            extensions.append(Extension(size, size.base if at.size < 0 else 0))
            count, at = count - at.free, CotPool(at._next, size.outputs)
        return CotDraw([*parts, count], extensions, replace(at, left=at.left - count))

    @property
    def free(self) -> int:
        """How many transfers can be drawn without an extension: all but the base of the next iteration."""
        return self.left - SIZES[self._next].base if self.size >= 0 else 0

    @property
    def _next(self) -> int:
        return min(self.size + 1, len(SIZES) - 1)


class CotDraw(NamedTuple):
    """How transfers are drawn.

    parts: how many are taken before the first extension, before the second one, and so on, and after the last one.
    extensions: their messages. pool: what is left.
    """

    parts: list[int]
    extensions: list[Extension]
    pool: CotPool

    @property
    def bits(self) -> int:
        """Bits of all messages."""
        return sum(extension.bits for extension in self.extensions)

    @property
    def rounds(self) -> int:
        """Rounds of all messages: two for each extension."""
        return 2 * len(self.extensions)


def steady_bits() -> float:
    """Return the bits of both sides for a transfer of the largest iterations."""
    largest = SIZES[-1]
    return Extension(largest).bits / (largest.outputs - largest.base)


# Both sides -----------------------------------------------------------------------------------------------------------


class SilentSide(ABC):
    """One side of the silent transfers of one direction.

    public: names the connection and the direction; both sides have it. It is no secret, and random.
    """

    def __init__(self, public: bytes) -> None:
        both = b"".join(prg.derive(public, name) for name in ("trees", "code"))
        self._keys = torch.frombuffer(bytearray(both), dtype=torch.int64).view(2, 2)
        self._size = LpnSet(0, 0, 0)
        self._table = self._rest = torch.empty(0, 2, dtype=torch.int64)
        self._tree = 0  # how many trees of the iteration are grown
        self._first_tree = self._output = 0  # numbers of the connection: of the iteration's first tree, the next output

    def take(self, count: int) -> Tensor:
        """Return the keys of the next transfers, int64 (count, 2). There must be so many before the next extension."""
        rest, each = len(self._rest), 1 << self._size.depth
        trees = -(-max(0, count - rest) // each)
        assert self._tree + trees <= self._size.trees, "an extension is due"
        out = torch.empty((rest + trees * each, 2), dtype=torch.int64)
        out[:rest] = self._rest
        if trees:
            self._make(slice(self._tree, self._tree + trees), out[rest:])
        self._tree, self._output = self._tree + trees, self._output + trees * each
        self._rest = out[count:].clone()
        return out[:count]

    @abstractmethod
    def _make(self, trees: slice, out: Tensor) -> None:
        """Make the transfers of some of the iteration's trees; `out` gets the keys."""

    def _begin(self, size: LpnSet, base: Tensor) -> None:
        """Begin an iteration. base: the keys of its table."""
        assert not len(self._rest), "transfers of the iteration before are left"
        self._first_tree += self._size.trees
        self._size, self._table, self._tree = size, base, 0
        self._rest = base[:0]


class SilentSender(SilentSide):
    """The sender's side; `take` returns its keys Q, whose lowest bits are 0.

    sender: of SoftSpoken OT, from which the first base comes: its transfers from number 0 on.
    """

    def __init__(self, sender: cot.Sender, public: bytes) -> None:
        super().__init__(public)
        self._sender, self.delta = sender, sender.delta
        self._roots = self._rest

    def answer(self, extension: Extension, asked: bytes) -> bytes:
        """Begin an iteration; return the answer to the receiver's message. Raises AgreementError for another size."""
        if len(asked) != extension.asked:
            what = (
                f"an iteration of silent transfers takes {extension.asked} bytes here, the receiver sent {len(asked)}"
            )
            raise AgreementError(what, where="ot.silent.SilentSender", hint=_HINT)
        size, split = extension.size, extension.asked - packed(extension.size.used)
        if extension.base:
            base = self._sender.extend(0, extension.base, asked[:split], random=True) & _CLEARED
        else:
            base = self.take(size.base)
        flipped = torch.frombuffer(bytearray(asked[split:]), dtype=torch.uint8)
        table, used = base[: 1 << size.log_table].clone(), base[1 << size.log_table :]
        self._begin(size, table)
        self._roots = prg.fresh().words(size.trees, 2)
        sums = tree_sums(self._roots, self.delta, self._keys, self._first_tree, size.depth)
        return (choose(used, flipped, self.delta) ^ sums.view(-1, 2)).numpy().tobytes()

    def _make(self, trees: slice, out: Tensor) -> None:
        numbers = self._first_tree + trees.start, self._output
        send_silent(self._roots[trees], self.delta, self._table, self._keys, *numbers, out)


class SilentReceiver(SilentSide):
    """The receiver's side; `take` returns its keys T, whose lowest bits are its choices.

    receiver: of SoftSpoken OT, from which the first base comes: its transfers from number 0 on.
    """

    def __init__(self, receiver: cot.Receiver, public: bytes) -> None:
        super().__init__(public)
        self._receiver = receiver
        self._paths, self._others, self._used = self._rest[:, 0], self._rest, self._rest

    def ask(self, extension: Extension) -> bytes:
        """Draw the paths of an iteration; return the message for the sender."""
        size, message = extension.size, b""
        if extension.base:
            message, choices, keys = self._receiver.random(0, extension.base)
            base = keys & _CLEARED | torch.stack([choices.long(), torch.zeros(len(choices), dtype=torch.int64)], 1)
        else:
            base = self.take(size.base)
        table, self._used = base[: 1 << size.log_table].clone(), base[1 << size.log_table :]
        self._begin(size, table)
        self._paths = prg.fresh().words(size.trees) & (1 << size.depth) - 1
        sides = 1 - (self._paths[:, None] >> torch.arange(size.depth) & 1)
        flipped = (self._used[:, 0] & 1) ^ sides.flatten()
        return message + kernels.pack_bits(flipped.to(torch.uint8)).numpy().tobytes()

    def learn(self, answer: bytes) -> None:
        """Take the sender's answer. Raises AgreementError for another size than the iteration's."""
        if len(answer) != (size := SEED * self._size.used):
            what = f"an iteration's answer takes {size} bytes here, the sender sent {len(answer)}"
            raise AgreementError(what, where="ot.silent.SilentReceiver", hint=_HINT)
        blocks = torch.frombuffer(bytearray(answer), dtype=torch.int64).view(-1, 2)
        self._others = (blocks ^ self._used).view(self._size.trees, self._size.depth, 2)
        self._used = self._rest

    def _make(self, trees: slice, out: Tensor) -> None:
        numbers = self._first_tree + trees.start, self._output
        receive_silent(self._paths[trees], self._others[trees], self._table, self._keys, *numbers, out)


_HINT = "both sides need the same net, options and release"
_CLEARED = torch.tensor([-2, -1])  # all bits but the lowest
