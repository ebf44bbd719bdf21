"""Base transfers: the keys that both know agree, the pairs of public keys look alike, and bad messages are refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from hummingbird import cost, prg
from hummingbird.errors import InputError
from hummingbird.ot import base_ot

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493  # of the subgroup of public keys
# 0, 1 and two more, of orders 2, 4 and 8; -1 on the twist.
LOW_ORDER = [
    *(0, 1, PRIME - 1),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]


def choices() -> Tensor:
    return prg.fresh().bits(128)


def on_curve(u: int) -> bool:
    return pow(u * (u * u + 486662 * u + 1), (PRIME - 1) // 2, PRIME) == 1


def multiple(u: int, scalar: int) -> int:
    """The u of a multiple of a point, -1 for the neutral one: the ladder of RFC 7748, without its clamping."""
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in bin(scalar)[2:]:
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        x3, z3 = (d * a + c * b) ** 2 % PRIME, u * (d * a - c * b) ** 2 % PRIME
        x2, z2 = a * a * b * b % PRIME, (a * a - b * b) * (a * a + 121665 * (a * a - b * b)) % PRIME
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
    return x2 * pow(z2, -1, PRIME) % PRIME if z2 else -1


def points(message: bytes) -> list[tuple[int, int]]:
    """The pairs of a chooser's message."""
    us = [int.from_bytes(message[at : at + 32], "little") for at in range(0, len(message), 32)]
    return list(zip(us[::2], us[1::2], strict=True))


def test_the_ladder_is_x25519() -> None:
    secret = X25519PrivateKey.generate()
    scalar = int.from_bytes(secret.private_bytes_raw(), "little") & (1 << 254) - 8 | 1 << 254  # as RFC 7748 clamps it
    own = int.from_bytes(secret.public_key().public_bytes_raw(), "little")
    assert multiple(9, scalar) == own
    assert multiple(9, ORDER) == -1 and multiple(9, ORDER - 1) == 9


def test_the_chooser_gets_the_keys_of_its_choices_and_no_others() -> None:
    bits = choices()
    chooser = base_ot.Chooser(bits)
    reply, both = base_ot.answer(chooser.message)
    keys = chooser.keys(reply)
    assert len(chooser.message) == cost.BASE_OT_CHOICE and len(reply) == cost.BASE_OT_ANSWER
    assert torch.equal(keys, both[torch.arange(128), bits.long()])
    all_keys = {both[i, s].numpy().tobytes() for i in range(128) for s in range(2)}
    assert len(all_keys) == 256
    _, others = base_ot.answer(chooser.message)
    assert not (others == both).all(2).any()


def test_keys_belong_to_the_whole_transcript() -> None:
    """One changed public key changes all keys of the sender, so that no other message can be put in its place."""
    chooser = base_ot.Chooser(choices())
    reply, both = base_ot.answer(chooser.message)
    chooser.message = chooser.message[:-32] + X25519PrivateKey.generate().public_key().public_bytes_raw()
    keys = chooser.keys(reply)
    assert not (keys[:, None] == both).all(2).any()


def test_one_public_key_for_all_gives_256_keys() -> None:
    _, both = base_ot.answer(X25519PrivateKey.generate().public_key().public_bytes_raw() * 256)
    assert len({both[i, s].numpy().tobytes() for i in range(128) for s in range(2)}) == 256


def test_who_keeps_every_scalar_still_has_one_key_of_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    scalars = []

    def generate() -> X25519PrivateKey:
        scalars.append(X25519PrivateKey.generate())
        return scalars[-1]

    bits = choices()
    monkeypatch.setattr(base_ot, "X25519PrivateKey", SimpleNamespace(generate=generate))
    message = base_ot.Chooser(bits).message
    assert len(scalars) == 256
    known = {int.from_bytes(scalar.public_key().public_bytes_raw(), "little") for scalar in scalars}
    assert [(a in known, b in known) for a, b in points(message)] == [(bit == 0, bit == 1) for bit in bits.tolist()]


def odd_ones(message: bytes, fine: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Transfers in which just one public key passes a test, and which one it is: an attack on the choices."""
    passed = [(i, fine(a), fine(b)) for i, (a, b) in enumerate(points(message))]
    return [(i, int(b)) for i, a, b in passed if a != b]


def in_subgroup(u: int) -> bool:
    return multiple(u, ORDER) == -1


def forged(bits: Tensor, draw: Callable[[], int]) -> bytes:
    """A chooser's message without the cure: what it has no key for is `draw()`."""
    pairs = points(base_ot.Chooser(bits).message)
    for i, bit in enumerate(bits.tolist()):
        pairs[i] = (pairs[i][0], draw()) if bit == 0 else (draw(), pairs[i][1])
    return b"".join(u.to_bytes(32, "little") for pair in pairs for u in pair)


def random_number() -> int:
    return int.from_bytes(prg.new_seed(32), "little") % PRIME


def random_point() -> int:
    """On the curve, in the whole group."""
    return next(u for u in iter(random_number, None) if on_curve(u))


def test_random_numbers_would_show_half_of_the_choices() -> None:
    bits = choices()
    shown = odd_ones(forged(bits, random_number), on_curve)
    assert 20 < len(shown) < 108  # 64, and eight deviations of 5.7
    assert all(bits[i] == bit for i, bit in shown)
    assert not odd_ones(base_ot.Chooser(bits).message, on_curve)


def test_points_without_the_cofactor_would_show_most_choices() -> None:
    bits = choices()
    shown = odd_ones(forged(bits, random_point)[: 32 * 64], in_subgroup)
    assert len(shown) > 10  # of 32: 28, and eight deviations of 1.9
    assert all(bits[i] == bit for i, bit in shown)
    assert all(in_subgroup(u) for pair in points(base_ot.Chooser(bits).message)[:32] for u in pair)


def test_the_point_without_a_logarithm_is_the_published_text_s() -> None:
    """Both parties' releases must have the same one; and it is on the curve, not of low order."""
    u = int.from_bytes(base_ot.hashed_point().public_bytes_raw(), "little")
    assert on_curve(u) and multiple(u, 8) not in (-1, 0)
    assert hex(u) == "0x358fe08d4ede3e02494103109303dfd709462e23691654c18b169dc34128811a"


@pytest.mark.parametrize("u", [*LOW_ORDER, PRIME, PRIME + 9, 2**255 - 1, 2**255 + 9, 2**256 - 1])
def test_low_order_and_second_encodings_are_refused(u: int) -> None:
    chooser = base_ot.Chooser(choices())
    bad = u.to_bytes(32, "little")
    with pytest.raises(InputError, match="base OT, the chooser's keys"):
        base_ot.answer(chooser.message[: 32 * 77] + bad + chooser.message[32 * 78 :])
    with pytest.raises(InputError, match="base OT, the sender's key"):
        chooser.keys(bad)


def test_other_sizes_and_choices_are_refused() -> None:
    chooser = base_ot.Chooser(choices())
    for message in (b"", chooser.message[:-1], chooser.message + b"\0", chooser.message[32:]):
        with pytest.raises(InputError, match="expected 8192 bytes"):
            base_ot.answer(message)
    for reply in (b"", bytes(31), bytes(33)):
        with pytest.raises(InputError, match="expected 32 bytes"):
            chooser.keys(reply)
    for bits in (choices()[1:], choices() + 2, choices().long()):
        with pytest.raises(InputError, match="128 choices"):
            base_ot.Chooser(bits)
