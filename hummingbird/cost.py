"""Rounds and bits of messages, in closed form (standard library only).

`bits` are sent online by one party, frames included; `offline_bits` are the corrections that the dealer sends to all
parties together, by rotation (besides a 128-bit seed for each, once per session). n: number of elements. parties: N.
The meter must count exactly these numbers; tests check it.

The price of a protocol's operation is in its module of mpc/protocols. This module has openings, from which such prices
are composed, and messages that several rooms of the package share or compare.
"""

from __future__ import annotations

from dataclasses import dataclass

HEADER_BYTES = 20  # of every frame between parties (channel/channel.py)


@dataclass(frozen=True)
class Cost:
    """Rounds, bits sent by one party, and bits received offline by all parties; costs of consecutive steps add up."""

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
    """The cost of an opening: one frame with this payload to each of the other parties."""
    if parties == 1:
        return Cost(0, 0, offline_bits)
    return Cost(1, 8 * (parties - 1) * (HEADER_BYTES + payload_bytes), offline_bits)


def to_one(parties: int, payload_bytes: int, sends: bool) -> Cost:
    """The cost of one message from each party to a single one. sends: whether this party is a sender."""
    return Cost(int(parties > 1), 8 * (HEADER_BYTES + payload_bytes) if sends and parties > 1 else 0)


def sharing(parties: int, is_source: bool) -> Cost:
    """The cost of sharing an input: its owner sends the shape (nine words); the shares come from seeds."""
    return Cost(int(parties > 1), 8 * (parties - 1) * (HEADER_BYTES + 72) if is_source else 0)


# Clients that are not parties (serving/message.py, serving/control.py) ------------------------------------------------

REQUEST_HEADER_BYTES, ANSWER_HEADER_BYTES = 64, 8
ORDER_WORDS = 4  # of 8 bytes, for each request that party 0 names


def asking(parties: int, values: int, bits: int, results: int, result_bits: int, key_bytes: int = 0) -> tuple[int, int]:
    """Bytes that a client sends to all parties together, and receives from them: up N - 1 seeds and one copy of the
    values' low bits, down N copies of the results' low bits.

    values, results: numbers in all images of the request. key_bytes: bytes of the lookups' keys for each party.
    """
    up = parties * (REQUEST_HEADER_BYTES + key_bytes) + (parties - 1) * 16 + packed(values * bits)
    return up, parties * (ANSWER_HEADER_BYTES + packed(results * result_bits))


def ordering(parties: int, requests: int, first: bool) -> Cost:
    """The cost of party 0's list of `requests` requests to the others: a header, and a row for each request.

    first: whether the cost is party 0's.
    """
    payload = 16 + 8 * ORDER_WORDS * requests
    frames = 1 + (requests > 0)
    bits = 8 * (parties - 1) * (frames * HEADER_BYTES + payload)
    return Cost(int(parties > 1), bits if first and parties > 1 else 0)


# CrypTen's own functions on two private values ----------------------------------------------------------------------


def crypten_mul(n: int, parties: int) -> Cost:
    """CrypTen's private product of n elements, with the truncation of crypten/fixed_point.py."""
    return opening(parties, 16 * n, 64 * n) + opening(parties, 8 * n, 128 * n)


def crypten_square(n: int, parties: int) -> Cost:
    """CrypTen's private square of n elements, with the truncation of crypten/fixed_point.py."""
    return opening(parties, 8 * n, 64 * n) + opening(parties, 8 * n, 128 * n)


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
    return crypten_ltz(n, parties) + opening(parties, 16 * n, 64 * n)


def crypten_shipped_relu(n: int, parties: int) -> Cost:
    """CrypTen's ReLU as shipped, without this package's frames. Its offline bits are those that a dealer would send for
    its triples, which CrypTen's own provider lets every party draw.
    """
    here = crypten_relu(n, parties)
    return Cost(here.rounds, here.bits - 8 * HEADER_BYTES * here.rounds * (parties - 1), here.offline_bits)


# Oblivious transfers of two parties (hybrid/gc/base_ot.py, hybrid/gc/cot.py); bytes without frames ---

BASE_OT_CHOICE, BASE_OT_ANSWER = 128 * 2 * 32, 32  # public keys of X25519
COT_SET_UP = BASE_OT_CHOICE, BASE_OT_ANSWER + 128 * 2 * 16  # the sender's message, the receiver's, once a session


def cot_message(count: int, random: bool) -> int:
    """Bytes of a receiver's message for `count` correlated transfers, in blocks of 128: 31/8 or 4 bytes each."""
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
    """Bytes of replies: 26,624 for each, a polynomial modulo two primes, and 6.5 for each value read from them."""
    return replies * (2 * BFV_DEGREE * BFV_PRIME_BITS // 8) + packed(2 * BFV_PRIME_BITS * values)


# Garbled gates of two parties (hybrid/gc/relu.py); bytes without frames ---

LABEL_BYTES, TILE = 16, 16  # of a wire; instances whose rows are packed together


def garbled_tables(n: int, blocks: int, words: int, ring: int) -> int:
    """Bytes of the tables of n instances, each of `blocks` blocks of 16 bytes and `words` words of `ring` bits, packed
    in tiles of 16 instances.
    """
    full, rest = divmod(n, TILE)
    return LABEL_BYTES * blocks * n + packed(TILE * words * ring) * full + packed(rest * words * ring)


def garbled_online(n: int, width: int, ring: int, garbler: str) -> tuple[int, int]:
    """Bytes online for n instances, to the data's side and to the model's side. garbler: "data" or "model".

    If the data's side garbles, it gets width bits of each instance and sends a label for each bit. If the model's side
    garbles, it sends these labels, and gets results mod 2^ring.
    """
    labels = LABEL_BYTES * n * width
    return (packed(n * width), labels) if garbler == "data" else (labels, packed(n * ring))


# Impala (Choi et al., 2022) -----------------------------------------------------------------------------------------


def impala(relus: int, pools: int, width: int) -> tuple[int, int]:
    """Bytes offline and online of ReLUs and 2x2 max poolings on values of `width` bits, by Impala's Table 4."""
    return (128 * relus + 416 * pools) * width, (80 * relus + 272 * pools) * width
