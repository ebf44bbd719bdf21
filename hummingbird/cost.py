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
    """The price of a piece of work in messages: rounds and bits; `+` adds the prices of two pieces, `-` leaves one out.

    rounds: their number. bits: sent online by one party. offline_bits: sent by the dealer to all parties together. The
    second piece runs after the first, so their rounds add up.
    """

    rounds: int = 0
    bits: int = 0
    offline_bits: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.bits + other.bits, self.offline_bits + other.offline_bits)

    def __sub__(self, part: Cost) -> Cost:
        return self + part * -1

    def __mul__(self, times: int) -> Cost:
        return Cost(self.rounds * times, self.bits * times, self.offline_bits * times)

    def seconds(self, bits_per_second: float, round_trip_seconds: float) -> float:
        """Return the seconds of these messages on a link: half a round trip for every round, and the time for the bits.

        bits_per_second: bandwidth of one party. round_trip_seconds: of the link. Computation, and the dealer's bits,
        are not in it.
        """
        return self.rounds * round_trip_seconds / 2 + self.bits / bits_per_second


FREE = Cost()


def packed(n: int) -> int:
    """Return how many bytes `n` single bits take if a byte holds eight of them."""
    return (n + 7) // 8


def opening(parties: int, payload_bytes: int, offline_bits: int = 0) -> Cost:
    """Return the price, for one party, of an opening: every party sends one frame to each other party, in one round.

    payload_bytes: of the frame. offline_bits: what the dealer sends to all parties for the values that are opened.
    """
    if parties == 1:
        return Cost(0, 0, offline_bits)
    return Cost(1, 8 * (parties - 1) * (HEADER_BYTES + payload_bytes), offline_bits)


def to_one(parties: int, payload_bytes: int, sends: bool) -> Cost:
    """Return the price, for one party, of a round in which every other party sends a message to one receiver.

    parties: their number. payload_bytes: of each message. sends: whether the price is that of a sender; the receiver
    sends no bits.
    """
    return Cost(int(parties > 1), 8 * (HEADER_BYTES + payload_bytes) if sends and parties > 1 else 0)


def sharing(parties: int, is_source: bool) -> Cost:
    """Return the price, for one party, of sharing an input: the owner sends its shape (72 bytes) to all others.

    It takes one round. The shares themselves follow from seeds. is_source: whether this party is the owner; another
    party sends no bits.
    """
    return telling(parties, 72, is_source)


def telling(parties: int, payload_bytes: int, is_source: bool) -> Cost:
    """Return the price, for one party, of a round in which one party sends a message to all others.

    parties: their number. payload_bytes: of the message. is_source: whether this party is the one that sends; another
    party sends no bits.
    """
    return Cost(int(parties > 1), 8 * (parties - 1) * (HEADER_BYTES + payload_bytes) if is_source else 0)


# Clients that are not parties (serving/message.py, serving/control.py) ------------------------------------------------

REQUEST_HEADER_BYTES, ANSWER_HEADER_BYTES = 64, 8
ORDER_WORDS = 4  # of 8 bytes, for each request that party 0 names


def asking(parties: int, values: int, bits: int, results: int, result_bits: int, key_bytes: int = 0) -> tuple[int, int]:
    """Return the bytes that a client's request sends to all parties together, and those that it receives, as a tuple.

    The client sends N - 1 seeds, from which shares follow, and one copy of the inputs' low bits; it receives N copies
    of the results' low bits.
    values, results: how many numbers the request's images have together, as inputs and as results. bits, result_bits:
    how many low bits of each input and of each result are sent. key_bytes: bytes of the keys for lookups, for each
    party.
    """
    up = parties * (REQUEST_HEADER_BYTES + key_bytes) + (parties - 1) * 16 + packed(values * bits)
    return up, parties * (ANSWER_HEADER_BYTES + packed(results * result_bits))


def ordering(parties: int, requests: int, first: bool) -> Cost:
    """Return the price of the message by which party 0 tells all other parties which `requests` requests they run next.

    It has a header, and an entry for each request. first: whether the price is that of party 0, the only sender; that
    of another party has no bits.
    """
    payload = 16 + 8 * ORDER_WORDS * requests
    frames = 1 + (requests > 0)
    bits = 8 * (parties - 1) * (frames * HEADER_BYTES + payload)
    return Cost(int(parties > 1), bits if first and parties > 1 else 0)


# CrypTen's own functions on two private values ----------------------------------------------------------------------


def crypten_mul(n: int, parties: int) -> Cost:
    """Return the price of CrypTen's product of two private tensors with n values each, its truncation included."""
    return opening(parties, 16 * n, 64 * n) + opening(parties, 8 * n, 128 * n)


def crypten_square(n: int, parties: int) -> Cost:
    """Return the price of CrypTen's square of a private tensor with n values, truncation of the result included."""
    return opening(parties, 8 * n, 64 * n) + opening(parties, 8 * n, 128 * n)


def crypten_ltz(n: int, parties: int) -> Cost:
    """Return the price of CrypTen's exact sign (whether x < 0) of n private values.

    CrypTen adds the parties' shares pairwise by a prefix adder on words of 64 bits, and converts the sum's top bit to
    additive shares.
    """
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
    """Return the price of CrypTen's ReLU of n private values: between two parties 1856 bits a value, and 9 rounds."""
    return crypten_ltz(n, parties) + opening(parties, 16 * n, 64 * n)


def crypten_shipped_relu(n: int, parties: int) -> Cost:
    """Return the price of a ReLU of n values in CrypTen as its authors ship it, without this package's frame headers.

    Its offline bits are those that a dealer would send for its triples. CrypTen as shipped has no dealer: every party
    draws all triples itself.
    """
    here = crypten_relu(n, parties)
    return Cost(here.rounds, here.bits - 8 * HEADER_BYTES * here.rounds * (parties - 1), here.offline_bits)


# Oblivious transfers of two parties (ot/base_ot.py, ot/cot.py); bytes without frames ---

BASE_OT_CHOICE, BASE_OT_ANSWER = 128 * 2 * 32, 32  # public keys of X25519
COT_SET_UP = BASE_OT_CHOICE, BASE_OT_ANSWER + 128 * 2 * 16  # the sender's message, the receiver's, once a session


def cot_message(count: int, random: bool) -> int:
    """Return the bytes of the receiver's message for `count` correlated oblivious transfers (ot/cot.py).

    random: whether the receiver's choice bits are random: a block of 128 transfers then takes 496 bytes, otherwise 512.
    """
    return (31 if random else 32) * 16 * -(-count // 128)


# Encrypted products of two parties (he/bfv) -------------------------------------------------------------------------

BFV_DEGREE, BFV_PRIME_BITS = 4096, 26


def bfv_fresh(ciphertexts: int) -> int:
    """Return the bytes of a message of fresh BFV ciphertexts: a seed, and 53,248 bytes for each.

    A fresh ciphertext is sent as one polynomial modulo four primes; the other follows from the seed.
    """
    return 16 + ciphertexts * (4 * BFV_DEGREE * BFV_PRIME_BITS // 8)


def bfv_switching_key() -> int:
    """Return the bytes of a BFV switching key, 851,968: eight ciphertexts of two polynomials modulo four primes."""
    return 8 * 2 * (4 * BFV_DEGREE * BFV_PRIME_BITS // 8)


def bfv_reply(replies: int, values: int) -> int:
    """Return the bytes of a BFV server's answer.

    It has 26,624 bytes for each of `replies` ciphertexts, and 6.5 bytes for each of the `values` results that the
    client reads from all of them. A ciphertext of an answer is two polynomials modulo two primes: one is sent in full;
    of the other, only coefficients that hold a result.
    """
    return replies * (2 * BFV_DEGREE * BFV_PRIME_BITS // 8) + packed(2 * BFV_PRIME_BITS * values)


# Garbled gates of two parties (hybrid/gc/relu.py); bytes without frames ---

LABEL_BYTES, TILE = 16, 16  # of a wire; instances whose rows are packed together


def garbled_tables(n: int, blocks: int, words: int, ring: int) -> int:
    """Return the bytes of the tables of n garbled circuits of one kind (kernels/garble.py).

    blocks: how many blocks of 16 bytes each circuit has. words: how many words of `ring` bits it has besides; the words
    of 16 circuits are packed together.
    """
    full, rest = divmod(n, TILE)
    return LABEL_BYTES * blocks * n + packed(TILE * words * ring) * full + packed(rest * words * ring)


def garbled_online(n: int, width: int, ring: int, garbler: str) -> tuple[int, int]:
    """Return the bytes sent online for n garbled circuits, as a tuple: to the data's side, to the model's side.

    width: input bits of each circuit. ring: bits of each result. garbler: the side that has made the circuits, "data"
    or "model". If it is the data's side, it gets `width` masked bits for each circuit, and sends a label for each of
    them. If it is the model's side, it sends a label for each input bit, and gets the results mod 2^ring.
    """
    labels = LABEL_BYTES * n * width
    return (packed(n * width), labels) if garbler == "data" else (labels, packed(n * ring))


# Impala (Choi et al., 2022) -----------------------------------------------------------------------------------------


def impala(relus: int, pools: int, width: int) -> tuple[int, int]:
    """Return the bytes that the protocol Impala sends offline and online, as a tuple, for ReLUs and 2x2 max poolings.

    relus, pools: how many values ReLUs and poolings return in all. width: bits of a value. The numbers are from Table 4
    of Impala: Choi et al., 2022.
    """
    return (128 * relus + 416 * pools) * width, (80 * relus + 272 * pools) * width
