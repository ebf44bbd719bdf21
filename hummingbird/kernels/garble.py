"""Garbled circuits of a ReLU ("relu"), and of a sign extension without it ("lift"), on shares of few bits.

The garbler holds s, the evaluator p, both of w bits; x = s + p mod 2^w is read as a signed number. The evaluator's
result is y - r mod 2^k', for y = relu(x) ("relu") or y = x ("lift"). Two variants:

    garbler "data"    knows s and r when it garbles; only the evaluator's bits have labels
    garbler "model"   knows neither: its bits have labels too, which it sends once it knows s; the evaluator's result is
                      y + offset, and the garbler learns the offset by garbling

Labels are blocks of 128 bits, int64 (..., 2), the low word first. The offset R of labels (`delta`) is secret and odd: a
wire's label of 1 is its label of 0 XOR R, and a label's lowest bit is its colour. XOR is free (Kolesnikov and
Schneider, 2008), NOT swaps labels, an AND costs two blocks (half-gates: Zahur, Rosulek and Evans, 2015). The circuit,
with c_0 = 0:

    c_{i+1} = c_i ^ (p_i ^ c_i)(s_i ^ c_i),  i = 0 .. w-2        x_i = s_i ^ p_i ^ c_i        b = not x_{w-1}

L_i and G_i are the labels of 0 of p_i and s_i. The garbler "data" knows s_i and swaps labels accordingly: its G_i is
s_i R, the evaluator's is 0. The hash of a block (Guo, Katz, Wang, Weng and Yu, "Better concrete security for half-gates
garbling (in the multi-instance setting)", CRYPTO 2020), with a public key S, fresh for each session, and a number j,
never used twice under S:

    H_j(x) = AES-128_{S ^ j}(sigma(x)) ^ sigma(x)        sigma(l|r) = (l ^ r|l)        j = 256 tile + number

l is the high word; a block is 16 bytes, least significant first, for AES and for j. A tile is 16 instances, which share
the tile's keys. Gate i has the numbers 2 i and 2 i + 1, row i has 48 + i.

Gate i takes A = L_i ^ c_i and B = G_i ^ c_i, labels of 0 with colours a and b, and has two blocks:

    T = H_{2i}(A) ^ H_{2i}(A ^ R) ^ b R        U = H_{2i+1}(B) ^ H_{2i+1}(B ^ R) ^ A
    label of the AND = H_{2i}(A) ^ a T ^ H_{2i+1}(B) ^ b (U ^ A)

The evaluator computes the last line from the labels that it holds. Gate 0 of the garbler "data" is a half:
T = H_0(A) ^ H_0(A ^ R) ^ s_0 R, no U, and the AND's label is H_0(A) ^ a T.

Rows convert wires to numbers in Z_2^k'. X are the labels of x_i, B those of b. The evaluator holds one of each, with
colours u and v, and adds its own hash, truncated to the lowest k' bits, to the row of its colours:

    relu, i = 0 .. w-2:    row_i[u, v] = 2^i x_i b + nu_i - H_{48+i}(X ^ sigma(B))
    lift, i = 0 .. w-1:    row_i[u] = z_i x_i + nu_i - H_{48+i}(X),    z_i = 2^i, but z_{w-1} = -2^(w-1)

nu_i makes the row of colours 0 equal 0, which is not sent. The offset is the sum of all nu_i. The garbler "data" sends
a correction, -r - offset.

Format: tile after tile. Of a tile with m instances (16; the last tile may have fewer): gate after gate, T of each
instance, then U of each; then one stream of `kernels.pack_words`, k' bits a word: row after row, the colours (1, 0),
(0, 1), (1, 1) (of lift: 1) after each other, m words each; then m corrections.

No branch and no memory address depends on a label, a share or a mask. If AES is an ideal cipher, one call of an
attacker hits one of the 48 inputs that it does not know under a key with probability below 2^-121.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird.cost import TILE, garbled_tables
from hummingbird.errors import InputError
from hummingbird.kernels.checks import check_range
from hummingbird.kernels.registry import best

KINDS, GARBLERS = ("relu", "lift"), ("data", "model")
KEY_BYTES = 16
LEAST_WIDTH, MOST_WIDTH, MOST_RING = 2, 24, 32
MOST_TILES = 1 << 54
ROWS = 48  # number of the hash of row 0


def tiles(n: int) -> int:
    """Return how many tiles n instances of a circuit take; a tile is a group of 16 instances.

    Tiles are numbered, and no number may be used twice under one key.
    """
    return -(-n // TILE)


@dataclass(frozen=True)
class Circuit:
    """A kind of garbled circuit: it takes both sides' shares of a number, `width` bits each, and gives a result mod
    2^ring.

    kind: "relu": the result is the number's ReLU; "lift": the number itself, with its sign. width: 2 to 24. ring: 1 to
    32. garbler: the side that garbles; "data" knows its shares and the masks of the results when it garbles, "model"
    knows neither (module head). InputError for anything else.

        Circuit("relu", 10, 20, "data").table_bytes(1000) == 342_000
    """

    kind: str
    width: int
    ring: int
    garbler: str

    def __post_init__(self) -> None:
        for name, value, allowed in (("kind", self.kind, KINDS), ("garbler", self.garbler, GARBLERS)):
            if value not in allowed:
                message = f"expected one of {', '.join(allowed)}, got {value!r}"
                raise InputError(message, where=f"kernels.garble.Circuit({name})")
        check_range("kernels.garble.Circuit(width)", self.width, LEAST_WIDTH, MOST_WIDTH)
        check_range("kernels.garble.Circuit(ring)", self.ring, 1, MOST_RING)

    @property
    def blocks(self) -> int:
        """Return how many blocks of 16 bytes the gates of one instance of the circuit have in its garbled tables."""
        return 2 * (self.width - 1) - (self.garbler == "data")

    @property
    def words(self) -> int:
        """Return how many words of `ring` bits the garbled tables of one instance have, beside the gates' blocks.

        A row is a word that converts labels of bits to a number (module head). The words are the rows that are sent
        and, for the garbler "data", a correction.
        """
        rows = 3 * (self.width - 1) if self.kind == "relu" else self.width
        return rows + (self.garbler == "data")

    def table_bytes(self, n: int) -> int:
        """Return the size in bytes of the garbled tables of n instances."""
        return garbled_tables(n, self.blocks, self.words, self.ring)


def garble(
    circuit: Circuit, key: bytes, tile: int, delta: Tensor, labels: Tensor, shares: Tensor, masks: Tensor
) -> Tensor:
    """Garble n instances of a circuit, for the garbler "data"; returns the tables, uint8 (circuit.table_bytes(n),).

    key: 16 public bytes. tile: number of the first of `tiles(n)` tiles; their numbers must not be used again under this
    key. delta: the secret XOR of a wire's two labels, int64 (2,), odd. labels: int64 (n, w, 2), for each of the w bits
    of the evaluator's share its label of 0. shares: the garbler's shares, int64 (n,), from 0 to 2^w - 1. masks: the
    numbers that are subtracted from the results, int64 (n,), from 0 to 2^k' - 1, with k' = `circuit.ring`. Runs on
    torch.get_num_threads() threads. InputError for anything else.

        tables = garble(circuit, key, 0, delta, labels, shares, masks)
    """
    where = "kernels.garble.garble"
    n = _check(where, circuit, "data", key, tile, labels)
    _check_delta(where, delta)
    _check_values(f"{where}(shares)", shares, n, circuit.width)
    _check_values(f"{where}(masks)", masks, n, circuit.ring)
    tensors = [x.contiguous() for x in (delta, labels, shares, masks)]
    return best(garble, *tensors)(circuit, key, tile, *tensors)


def evaluate(circuit: Circuit, key: bytes, tile: int, labels: Tensor, tables: Tensor) -> Tensor:
    """Evaluate circuits that the data's side garbled; returns the results of n instances, int64 (n,), from 0 to 2^k' -
    1.

    A result is relu(x) - r for a circuit of kind "relu", x - r for "lift": x is the number of which both sides have
    shares, r the garbler's mask; k' is `circuit.ring`.

    key, tile: the values with which the garbler called `garble`. labels: int64 (n, w, 2), the label of each of the w
    bits of the evaluator's share. tables: the garbled tables, uint8 (circuit.table_bytes(n),). With another key or
    tile, or with damaged tables, the results are noise. InputError for other types or shapes.
    """
    where = "kernels.garble.evaluate"
    n = _check(where, circuit, "data", key, tile, labels)
    _check_tables(where, circuit, n, tables)
    tensors = [x.contiguous() for x in (labels, tables)]
    return best(evaluate, *tensors)(circuit, key, tile, *tensors)


def garble_model(
    circuit: Circuit, key: bytes, tile: int, delta: Tensor, labels: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """Garble n instances of a circuit, for the garbler "model"; returns the tables and the offsets of the results.

    The tables are uint8 (circuit.table_bytes(n),). The offsets are int64 (n,), from 0 to 2^k' - 1, with k' =
    `circuit.ring`: the numbers that evaluation adds to the results; the evaluator must not see them. own: int64 (n, w,
    2), for each of the w bits of the garbler's share its label of 0. The other arguments are as in `garble`.
    """
    where = "kernels.garble.garble_model"
    n = _check(where, circuit, "model", key, tile, labels)
    _check_delta(where, delta)
    _check_blocks(f"{where}(own)", own, n, circuit.width)
    tensors = [x.contiguous() for x in (delta, labels, own)]
    made: tuple[Tensor, Tensor] = best(garble_model, *tensors)(circuit, key, tile, *tensors)
    return made


def evaluate_model(circuit: Circuit, key: bytes, tile: int, labels: Tensor, own: Tensor, tables: Tensor) -> Tensor:
    """Evaluate circuits that the model's side garbled; returns the results of n instances, int64 (n,), from 0 to 2^k' -
    1.

    A result is relu(x) + offset for a circuit of kind "relu", x + offset for "lift": x is the number of which both
    sides have shares; k' is `circuit.ring`. The garbler has the offsets from `garble_model`; the evaluator does not
    learn them.

    own: int64 (n, w, 2), the label of each of the w bits of the garbler's share; the garbler sends these labels. The
    other arguments are as in `evaluate`.
    """
    where = "kernels.garble.evaluate_model"
    n = _check(where, circuit, "model", key, tile, labels)
    _check_blocks(f"{where}(own)", own, n, circuit.width)
    _check_tables(where, circuit, n, tables)
    tensors = [x.contiguous() for x in (labels, own, tables)]
    return best(evaluate_model, *tensors)(circuit, key, tile, *tensors)


def _check(where: str, circuit: Circuit, garbler: str, key: bytes, tile: int, labels: Tensor) -> int:
    """Check the arguments that the four functions for garbling and evaluating share; returns the number of instances.

    where: the function's name. garbler: the garbler, "data" or "model", whose circuits the function takes. key, tile,
    labels: the function's arguments. Raises InputError for a wrong one.
    """
    if not isinstance(circuit, Circuit) or circuit.garbler != garbler:
        message = f"expected a Circuit whose garbler is {garbler!r}, got {circuit}"
        raise InputError(message, where=f"{where}(circuit)", hint="the other one has functions of its own")
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        got = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise InputError(f"expected {KEY_BYTES} bytes, got {got}", where=f"{where}(key)")
    n = labels.shape[0] if isinstance(labels, Tensor) and labels.dim() == 3 else 0
    _check_blocks(f"{where}(labels)", labels, n, circuit.width)
    check_range(f"{where}(tile)", tile, 0, MOST_TILES - tiles(n))
    return n


def _check_blocks(where: str, labels: Tensor, n: int, width: int) -> None:
    _check_tensor(where, labels, torch.int64, (n, width, 2))


def _check_delta(where: str, delta: Tensor) -> None:
    _check_tensor(f"{where}(delta)", delta, torch.int64, (2,))
    if not int(delta[0]) & 1:
        hint = "set its lowest bit: it tells the colours of labels apart"
        raise InputError("an offset of labels must be odd", where=f"{where}(delta)", hint=hint)


def _check_values(where: str, values: Tensor, n: int, bits: int) -> None:
    _check_tensor(where, values, torch.int64, (n,))
    if bool(((values >> bits) != 0).any()):
        hint = f"reduce them mod 2^{bits}"
        raise InputError(f"expected numbers from 0 to {(1 << bits) - 1}", where=where, hint=hint)


def _check_tables(where: str, circuit: Circuit, n: int, tables: Tensor) -> None:
    _check_tensor(f"{where}(tables)", tables, torch.uint8, (circuit.table_bytes(n),))


def _check_tensor(where: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tensor.shape != shape or not tensor.is_cpu:
        is_tensor = isinstance(tensor, Tensor)
        got = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}" if is_tensor else type(tensor).__name__
        hint = "labels are int64 (n, width, 2), tables uint8 (circuit.table_bytes(n),), numbers int64 (n,)"
        raise InputError(f"expected {dtype} {shape} on the CPU, got {got}", where=where, hint=hint)
