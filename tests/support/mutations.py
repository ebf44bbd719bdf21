"""Inputs that parsers must refuse or read: random bytes, and valid samples changed in their bytes or in their JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

ODD = (None, True, -1, 0, 1, 65, 1 << 31, 1 << 40, 1 << 70, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"))
TEXTS = ("", "x", "0", "é\0\ud800", "[" * 50, "9" * 5000, "unix:", "0" * 32)
NUMBERS = (0, 1, 2, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def mutated(generator: random.Random, samples: Sequence[bytes]) -> bytes:
    """One input: three in four are a sample with one to four changes, the others unlike any sample."""
    if generator.randrange(8) == 0:
        return generator.randbytes(generator.choice((0, 1, 7, 8, 20, 64, 300)))
    data = bytearray(generator.choice(samples))
    if generator.randrange(40) == 0:
        return generator.choice((b"[", b'{"a":', b'[{"x":')) * 3000 + bytes(data)
    if data[:1] in (b"{", b"[") and generator.randrange(2):
        return changed_json(generator, bytes(data))
    for _ in range(generator.randint(1, 4)):
        change(generator, data)
    return bytes(data)


def change(generator: random.Random, data: bytearray) -> None:
    """One change of bytes, in place; more often near the beginning, where headers are."""
    size = len(data)
    place = generator.randrange(min(size, 64) + 1) if generator.randrange(2) else generator.randrange(size + 1)
    action = generator.randrange(7)
    if action == 0:
        data[place : place + 1] = bytes([generator.choice((0, 1, 8, 127, 255, generator.randrange(256)))])
    elif action == 1:
        del data[place : place + generator.randint(1, 16)]
    elif action == 2:
        data[place:place] = generator.randbytes(generator.randint(1, 16))
    elif action == 3:
        del data[place:]
    elif action == 4 and place < size:
        data[place] ^= 1 << generator.randrange(8)
    elif action == 5:
        place -= place % 8
        number, width = generator.choice(NUMBERS), generator.choice((2, 4, 8))
        data[place : place + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    else:
        data[place:place] = data[generator.randrange(size + 1) :][: generator.randint(1, 64)]


def changed_json(generator: random.Random, data: bytes) -> bytes:
    """The same JSON with one to three values replaced, removed, or added; as bytes where it is no JSON."""
    try:
        value = json.loads(data)
    except ValueError:
        return data[::-1]
    for _ in range(generator.randint(1, 3)):
        value = replaced(generator, value)
    return json.dumps(value).encode()


def replaced(generator: random.Random, value: Any) -> Any:
    """The value with one change somewhere inside."""
    if isinstance(value, dict) and value and generator.randrange(8):
        out, key = dict(value), generator.choice(list(value))
        if generator.randrange(12) == 0:
            del out[key]
        elif generator.randrange(12) == 0:
            out[generator.choice(("more", "", "format", "seed"))] = odd(generator)
        else:
            out[key] = replaced(generator, value[key])
        return out
    if isinstance(value, list) and value and generator.randrange(4):
        out_list, place = list(value), generator.randrange(len(value))
        if generator.randrange(8) == 0:
            out_list[place:place] = [odd(generator)] * generator.choice((1, 2, 20))
        else:
            out_list[place] = replaced(generator, value[place])
        return out_list
    if type(value) is int and generator.randrange(3) == 0:
        return value + generator.choice((-1, 1, 8, 1 << 20, 1 << 28, 1 << 62))
    return odd(generator)


def odd(generator: random.Random) -> Any:
    """A value that hardly any field expects."""
    kind = generator.randrange(6)
    if kind == 0:
        return [odd(generator) for _ in range(generator.randrange(3))]
    if kind == 1:
        return {generator.choice(("k", "m", "kind", "x")): odd(generator)}
    if kind == 2:
        return generator.choice(TEXTS)
    return generator.choice(ODD)
