"""Rounds and bits of every protocol, in closed form (standard library only).

`bits` are sent online by one party, frames included; `offline_bits` are the corrections that all parties together get
from the dealer, in turns (besides a 128-bit seed each, once per session). n: elements; parties: N. What the meter
counts equals these numbers; tests hold both to it.

Published costs, for comparison (HummingBird, section 4, N = 2): 2w + 4w*ceil(log2 w) + 129 bits in ceil(log2 w) + 3
rounds per ReLU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

HEADER_BYTES = 20  # of every frame between parties (channel/channel.py)


@dataclass(frozen=True)
class Cost:
    """Rounds, bits sent by one party, bits received offline by all together; costs of consecutive steps add up."""

    rounds: int = 0
    bits: int = 0
    offline_bits: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.bits + other.bits, self.offline_bits + other.offline_bits)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.rounds * times, self.bits * times, self.offline_bits * times)

    def seconds(self, bits_per_second: float, round_trip_seconds: float) -> float:
        """Wire time: every round costs half a round trip (one way), every bit its share of the bandwidth."""
        return self.rounds * round_trip_seconds / 2 + self.bits / bits_per_second


FREE = Cost()


def packed(n: int) -> int:
    """Bytes of n packed bits."""
    return (n + 7) // 8


def opening(parties: int, payload_bytes: int, offline_bits: int = 0) -> Cost:
    """One exchange: a frame with this payload to each of the other parties."""
    if parties == 1:
        return Cost(0, 0, offline_bits)
    return Cost(1, 8 * (parties - 1) * (HEADER_BYTES + payload_bytes), offline_bits)


def to_one(parties: int, payload_bytes: int, sends: bool) -> Cost:
    """One message per party, to a single one; `sends`: whether this party is a sender."""
    return Cost(int(parties > 1), 8 * (HEADER_BYTES + payload_bytes) if sends and parties > 1 else 0)


def sharing(parties: int, is_source: bool) -> Cost:
    """An input: its owner tells the shape (nine words); the shares themselves come from seeds."""
    return Cost(int(parties > 1), 8 * (parties - 1) * (HEADER_BYTES + 72) if is_source else 0)


# Clients that are not parties (serving/message.py, serving/control.py) ------------------------------------------------

REQUEST_HEADER_BYTES, ANSWER_HEADER_BYTES = 64, 8
ORDER_WORDS = 4  # of 8 bytes, for each request that party 0 names


def asking(parties: int, values: int, bits: int, results: int, result_bits: int, key_bytes: int = 0) -> tuple[int, int]:
    """Bytes that a client sends to all parties together, and gets: N - 1 seeds and one copy of its values' low bits up,
    N copies of its results' down. values, results: of all images of the request; key_bytes: of the keys of its lookups
    for each party.
    """
    up = parties * (REQUEST_HEADER_BYTES + key_bytes) + (parties - 1) * 16 + packed(values * bits)
    return up, parties * (ANSWER_HEADER_BYTES + packed(results * result_bits))


def ordering(parties: int, requests: int, first: bool) -> Cost:
    """A list of so many requests from party 0 (`first`: its own price) to the others: a header, and a row for each."""
    payload = 16 + 8 * ORDER_WORDS * requests
    frames = 1 + (requests > 0)
    bits = 8 * (parties - 1) * (frames * HEADER_BYTES + payload)
    return Cost(int(parties > 1), bits if first and parties > 1 else 0)


# The reduced-ring ReLU (protocols/gmw.py, protocols/truncation.py) --------------------------------------------------


def _and(n: int, planes: int, parties: int) -> Cost:
    return opening(parties, 2 * planes * packed(n), 8 * planes * packed(n))


def carry_tree(n: int, leaves: int, parties: int) -> Cost:
    """Carry out of `leaves` (generate, propagate) pairs: ceil(log2 leaves) rounds, about 3 bits per inner node."""
    total, left = FREE, leaves
    while left > 1:
        pairs = left // 2
        total += opening(parties, (3 * pairs - 1) * packed(n), 8 * (2 * pairs - 1) * packed(n))
        left -= pairs
    return total


def drelu(n: int, w: int, parties: int) -> Cost:
    """The sign bit of a sum of N window shares of w bits.

    N = 2: w-1 bits and one round for the first ANDs (each operand has one owner), then the tree: 4w - 7 - L bits and
    1 + L rounds in all, L = ceil(log2(w-1)). N > 2: carry-save adders first, one AND per bit and removed addend.
    """
    if w <= 1:
        return FREE
    total, addends = FREE, parties
    while addends > 2:
        triples = addends // 3
        total += _and(n, triples * (w - 1), parties)
        addends -= triples
    if parties == 2:
        total += opening(parties, (w - 1) * packed(n), 8 * (w - 1) * packed(n))
    elif parties > 2:
        total += _and(n, w - 1, parties)
    else:
        return FREE
    return total + carry_tree(n, w - 1, parties)


def select(n: int, shift: int, parties: int) -> Cost:
    """bit * (x >> shift) from shares of both: 65 bits and one round, truncation included."""
    return opening(parties, 8 * n + packed(n), 64 * n * (5 if shift else 2))


def truncate(n: int, parties: int) -> Cost:
    """x >> shift, exact to one unit: 64 bits and one round."""
    return opening(parties, 8 * n, 64 * n * 2)


def relu(n: int, w: int, shift: int, parties: int) -> Cost:
    """A whole ReLU with a window of w bits on shares that still carry `shift` bits to be cut."""
    if w == 0:
        return FREE
    return drelu(n, w, parties) + select(n, shift, parties)


def lift(n: int, k: int, ring: int, parties: int) -> Cost:
    """x mod 2^k to a ring of `ring` bits (protocols/lift.py): k bits and one round."""
    return opening(parties, packed(n * k), 8 * 2 * packed(n * (ring - k)))


# The masked opening (protocols/masked.py) -----------------------------------------------------------------------------

TABLE_BITS = 256  # of all step tables of one ReLU: what one table for a window of 8 bits takes
ROUND_BITS = 8  # of a value, that a round counts for beside its bits: 0.1 ms at 10 Gb/s, for 125,000 values at once


def chunks(w: int, tables: int) -> list[int]:
    """Bits of w that each of the tables covers, lowest first; the sizes differ by one at most."""
    if not 0 < tables <= w or -(-w // tables) > 8:
        raise ValueError(f"{tables} tables of at most 8 bits do not cover a window of {w} bits")
    return [w // tables + (place < w % tables) for place in range(tables)]


@functools.cache
def tables(w: int, knots: int = 1) -> int:
    """How many step tables a window of w bits is cut into: fewest rounds first, then fewest bits, online and offline.

    knots: comparisons of a value that the tables serve. They take at most `TABLE_BITS` for each, beyond which the
    dealer's bits outweigh a round.
    """
    fitting = [n for n in _splits(w) if sum(1 << size for size in chunks(w, n)) <= TABLE_BITS * knots]

    def price(n: int) -> tuple[int, int]:
        tree = _merging(knots << 10, n, 2)
        bits = tree.bits + tree.offline_bits + sum(packed(size) * 8 for size in _table_bits(1 << 10, w, n))
        return tree.rounds, bits

    return min(fitting, key=price)


@functools.cache
def thrifty_tables(w: int, parties: int = 2, dealer: float = 1.0, knots: int = 1) -> int:
    """How many step tables a window of w bits is cut into: fewest bits of all parties and the dealer together.

    dealer: what one of the dealer's bits counts for. knots: comparisons of a value that the tables serve. A round
    counts for `ROUND_BITS` of a value's bits.
    """
    n = 1 << 20  # values: the headers of frames decide nothing

    def price(count: int) -> tuple[float, int]:
        tree = _merging(knots * n, count, parties)
        offline = tree.offline_bits + 8 * sum(packed(size) for size in _table_bits(n, w, count))
        return parties * tree.bits + dealer * offline + ROUND_BITS * n * tree.rounds, tree.rounds

    return min(_splits(w), key=price)


def _splits(w: int) -> list[int]:
    """Numbers of tables, of at most 8 bits each, that a window of w bits can be cut into."""
    return [n for n in range(1, w + 1) if -(-w // n) <= 8]


def _table_bits(n: int, w: int, count: int) -> list[int]:
    return [n << size for size in chunks(w, count)]


def _merging(n: int, count: int, parties: int) -> Cost:
    """The tree above `count` tables: 3 bits per inner node, twice along the top, and 4 at the root."""
    total, below = FREE, count - 1
    while below > 1:
        planes = below // 2 + 2 * (below % 2)
        total += opening(parties, 3 * planes * packed(n), 8 * 2 * planes * packed(n))
        below //= 2
    return total + (_and(n, 2, parties) if below else FREE)


def masked_relu(
    n: int, k: int, m: int, ring: int, parties: int, count: int | None = None, knots: int = 1, whole: bool = False
) -> Cost:
    """A ReLU on k bits of which the upper k - m decide, its result mod 2^ring: k + 2 bits in 2 rounds for one table.

    count: of tables; None: `tables`. knots: J public numbers with which every value is compared, from one opening
    (protocols/thresholds.py): k + 2J bits. whole: whether shares are right mod 2^ring, so that no carry is dealt.
    """
    count = count or tables(k - m, knots)
    words = [0 if whole else ring - k, *(knots * width for width in (ring, ring - k, ring))]
    offline = sum(packed(n * width) for width in words) + sum(packed(size) for size in _table_bits(n, k - m, count))
    opened = opening(parties, packed(n * k), 8 * offline)
    tree = _merging(8 * packed(n) * knots, count, parties)
    return opened + tree + opening(parties, 2 * knots * packed(n))


def masked_squares(n: int, k: int, m: int, parties: int, count: int | None = None, knots: int = 1) -> Cost:
    """`masked_relu` mod 2^64 with the squares of its results: not a bit more between the parties."""
    words = [64, *(knots * width for width in (64, 64 - k - 1))]
    squares = Cost(offline_bits=8 * sum(packed(n * width) for width in words))
    return masked_relu(n, k, m, 64, parties, count, knots) + squares


def polynomial(n: int, k: int, w: int, widths: Sequence[int], parties: int) -> Cost:
    """A smooth function (protocols/poly.py): k bits and one round; 2^w coefficients of each power, of these widths."""
    return opening(parties, packed(n * k), 8 * sum(packed((n << w) * width) for width in widths))


def published_relu_bits(w: int) -> int:
    """HummingBird's own count per ReLU and party, N = 2."""
    return 2 * w + 4 * w * math.ceil(math.log2(w)) + 129 if w > 1 else 2 * w + 129


# Products of two private values -------------------------------------------------------------------------------------


def product(left: int, right: int, out: int, parties: int, bits: int = 64) -> Cost:
    """One Beaver product (matrix product, convolution, ...) of private operands with these numbers of elements, mod
    2^bits.
    """
    return opening(parties, packed(bits * left) + packed(bits * right), 8 * packed(bits * out))


def fixed_product(left: int, out: int, parties: int, bits: int = 64) -> Cost:
    """The same where the right operand was opened before, behind a mask that stays (protocols/weight_mask.py)."""
    return opening(parties, packed(bits * left), 8 * packed(bits * out))


def square(n: int, parties: int, bits: int = 64) -> Cost:
    """A product of n elements with themselves mod 2^bits, from dealt squares."""
    return opening(parties, packed(bits * n), 8 * packed(bits * n))


def opened_rows(n: int, rows: int, parties: int, bits: int) -> Cost:
    """n elements in rows, opened once for the sums of their squares and for a product with a number of each row, mod
    2^bits: 2 rounds.
    """
    opened = opening(parties, 8 * n, 64 * rows + 8 * packed(bits * n))
    return opened + opening(parties, packed(bits * rows))


def lifted_product(
    left: int, right: int, out: int, value: int, factor: int, bits: int, parties: int, cut: int = 0
) -> Cost:
    """A product mod 2^bits, less its lowest `cut` bits, of operands with these numbers of elements, lifted as they are
    opened, in `value` and `factor` bits (protocols/lifted_product.py): 1 round.
    """
    masks = 2 * packed(left * (bits + cut - value))
    offline = masks + _masks_of_products(right, out, value, factor, bits + cut, cut)
    return opening(parties, packed(left * value) + packed(right * factor), 8 * offline)


def _masks_of_products(right: int, out: int, value: int, factor: int, bits: int, cut: int) -> int:
    """Bytes that are dealt of masks of `right` factors, and of products with them."""
    of_products = [bits - cut, bits - value, bits - factor, max(0, bits - value - factor)]
    return 2 * packed(right * (bits - factor)) + sum(packed(out * width) for width in of_products)


def lifted_rows(n: int, rows: int, value: int, factor: int, sums: int, product: int, cut: int, parties: int) -> Cost:
    """n elements of `value` bits in rows, lifted by the opening that serves the sums of their squares, mod 2^sums, and
    a product with a number of each row, of `factor` bits, mod 2^product, less its lowest `cut` bits
    (protocols/rows.py): 2 rounds.
    """
    masks = 2 * packed(n * (max(sums, product + cut) - value))
    squares = masks + packed(n * (sums - value - 1)) + packed(rows * sums)
    offline = squares + _masks_of_products(rows, n, value, factor, product + cut, cut)
    return opening(parties, packed(n * value), 8 * offline) + opening(parties, packed(rows * factor))


def crypten_mul(n: int, parties: int) -> Cost:
    """CrypTen's private product of n elements, truncated here (crypten/fixed_point.py)."""
    return product(n, n, n, parties) + truncate(n, parties)


def crypten_square(n: int, parties: int) -> Cost:
    """CrypTen's private square, truncated here."""
    return square(n, parties) + truncate(n, parties)


def crypten_ltz(n: int, parties: int) -> Cost:
    """CrypTen's exact sign: 64-bit words throughout, a prefix adder per pair of addends, one bit back to the ring."""
    if parties == 1:
        return Cost(0, 0, 64 * n)
    total, addends = FREE, parties
    while addends > 1:
        pairs = addends // 2
        total += opening(parties, 16 * n * pairs, 64 * n * pairs)
        total += opening(parties, 32 * n * pairs, 128 * n * pairs) * 6
        addends -= pairs
    return total + opening(parties, 8 * n, 64 * n)


def crypten_relu(n: int, parties: int) -> Cost:
    """CrypTen's ReLU: 1856 bits and 9 rounds for two parties."""
    return crypten_ltz(n, parties) + product(n, n, n, parties)


def crypten_shipped_relu(n: int, parties: int) -> Cost:
    """The same as CrypTen ships it, whose messages have no frames of ours. Its offline bits are those that a dealer
    would send if it dealt the triples, which CrypTen's own provider lets every party draw.
    """
    here = crypten_relu(n, parties)
    return Cost(here.rounds, here.bits - 8 * HEADER_BYTES * here.rounds * (parties - 1), here.offline_bits)


# Oblivious transfers of two parties (hybrid/gc/base_ot.py, hybrid/gc/cot.py); bytes without frames ---

BASE_OT_CHOICE, BASE_OT_ANSWER = 128 * 2 * 32, 32  # public keys of X25519
COT_SET_UP = BASE_OT_CHOICE, BASE_OT_ANSWER + 128 * 2 * 16  # the sender's message, the receiver's, once a session


def cot_message(count: int, random: bool) -> int:
    """Bytes of a receiver's message for so many correlated transfers, in blocks of 128: 31/8 or 4 bytes each."""
    return (31 if random else 32) * 16 * -(-count // 128)


# Encrypted products of two parties (he/bfv) -------------------------------------------------------------------------

BFV_DEGREE, BFV_PRIME_BITS = 4096, 26


def bfv_fresh(ciphertexts: int) -> int:
    """Bytes of a message of fresh ciphertexts: one seed, and a polynomial modulo four primes for each, 53,248 bytes."""
    return 16 + ciphertexts * (4 * BFV_DEGREE * BFV_PRIME_BITS // 8)


def bfv_switching_key() -> int:
    """Bytes of a switching key: eight ciphertexts of two polynomials modulo four primes, 851,968."""
    return 8 * 2 * (4 * BFV_DEGREE * BFV_PRIME_BITS // 8)


def bfv_reply(replies: int, values: int) -> int:
    """Bytes of replies: 26,624 each, a polynomial modulo two primes, and 6.5 for each value that is read of them."""
    return replies * (2 * BFV_DEGREE * BFV_PRIME_BITS // 8) + packed(2 * BFV_PRIME_BITS * values)


# Garbled gates of two parties (hybrid/gc/relu.py); bytes without frames ---

LABEL_BYTES, TILE = 16, 16  # of a wire; instances whose rows are packed together


def garbled_tables(n: int, blocks: int, words: int, ring: int) -> int:
    """Bytes of n instances' tables, each of so many blocks of 16 bytes and words of `ring` bits, by tiles of 16."""
    full, rest = divmod(n, TILE)
    return LABEL_BYTES * blocks * n + packed(TILE * words * ring) * full + packed(rest * words * ring)


def garbled_online(n: int, width: int, ring: int, garbler: str) -> tuple[int, int]:
    """Bytes online for n instances, to the data's side and to the model's; garbler: "data" or "model".

    Labels of the evaluator's bits for the bits themselves; or labels of the garbler's, for results mod 2^ring.
    """
    labels = LABEL_BYTES * n * width
    return (packed(n * width), labels) if garbler == "data" else (labels, packed(n * ring))


# Impala (Choi et al., 2022) -----------------------------------------------------------------------------------------


def impala(relus: int, pools: int, width: int) -> tuple[int, int]:
    """Its own count, Table 4: bytes offline and online of ReLUs and 2x2 max poolings on values of `width` bits."""
    return (128 * relus + 416 * pools) * width, (80 * relus + 272 * pools) * width
