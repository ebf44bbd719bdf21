"""The binary encoding of tensors: exact round trips, and nothing but InputError for anything else."""

from __future__ import annotations

import random
import struct
from functools import partial

import pytest
import torch

from hummingbird.errors import InputError
from hummingbird.rpc.frame import MAX_DIMS, frame_bytes, pack_pieces, pack_tensors
from hummingbird.rpc.frame import unpack_tensors as unpack_at_most

unpack_tensors = partial(unpack_at_most, max_tensors=3)
SAMPLES = [
    [],
    [torch.tensor(-5)],
    [torch.arange(7, dtype=torch.uint8)],
    [torch.arange(-6, 6).view(3, 4), torch.zeros(0, 5), torch.tensor([1.5, float("inf")])],
    [torch.tensor([[2**63 - 1], [-(2**63)]]), torch.arange(3).int(), torch.ones(2, 1, 3, dtype=torch.uint8)],
]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    if len(left) != len(right):
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("tensors", SAMPLES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_round_trip(tensors, kind):
    frame = pack_tensors(tensors)
    assert len(frame) == frame_bytes([(t.dtype, t.shape) for t in tensors]) and len(frame) % 8 == 0
    assert same(unpack_tensors(kind(frame)), tensors)


@pytest.mark.parametrize("tensors", [*SAMPLES, [torch.arange(100), torch.arange(33, dtype=torch.uint8)]])
@pytest.mark.parametrize("size", [1, 7, 8, 16, 100, 1 << 20])
def test_pieces_are_the_frame(tensors, size):
    pieces = list(pack_pieces(tensors, size))
    assert b"".join(pieces) == pack_tensors(tensors)
    assert {len(piece) for piece in pieces[:-1]} <= {size} and 0 < len(pieces[-1]) <= size


def test_a_frame_has_as_many_tensors_as_its_reader_expects():
    frame = pack_tensors([torch.zeros(0)] * 3)
    assert len(unpack_at_most(frame, max_tensors=3)) == 3
    with pytest.raises(InputError, match="3 tensors exceed the limit of 2"):
        unpack_at_most(frame, max_tensors=2)


def test_layout_is_the_documented_one():
    expected = b"HB\x01\0" + struct.pack("<I", 1) + b"\x03\x02" + bytes(6) + struct.pack("<QQqq", 2, 1, 7, -1)
    assert pack_tensors([torch.tensor([[7], [-1]])]) == expected
    expected = header(1) + b"\x01\x01" + bytes(6) + struct.pack("<Q", 3) + b"\x01\x02\x03" + bytes(5)
    assert pack_tensors([torch.tensor([1, 2, 3], dtype=torch.uint8)]) == expected


def test_strides_do_not_matter():
    x = torch.arange(24).view(2, 3, 4)
    assert same(unpack_tensors(pack_tensors([x.transpose(0, 2), x[:, ::2]])), [x.transpose(0, 2), x[:, ::2]])


def test_writable_buffer_is_shared_and_readonly_one_is_not():
    frame = bytearray(pack_tensors([torch.zeros(4, dtype=torch.int64)]))
    unpack_tensors(frame)[0][0] = 1
    assert unpack_tensors(frame)[0].tolist() == [1, 0, 0, 0]
    fixed = bytes(frame)
    unpack_tensors(fixed)[0][0] = 9
    assert unpack_tensors(fixed)[0].tolist() == [1, 0, 0, 0]


def test_unaligned_buffer():
    tensors = [torch.arange(5)]
    shifted = bytearray(b"x" + pack_tensors(tensors))
    (out,) = unpack_tensors(memoryview(shifted)[1:])
    assert same([out], tensors) and out.data_ptr() % 8 == 0


BAD = [torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.bool), torch.zeros([1] * (MAX_DIMS + 1))]


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_encoded(bad):
    with pytest.raises(InputError, match="tensor 1"):
        pack_tensors([torch.zeros(1), bad])


def test_every_truncation_and_every_extension():
    frame = pack_tensors(SAMPLES[3])
    for length in range(len(frame)):
        with pytest.raises(InputError):
            unpack_tensors(frame[:length])
    for extra in (1, 8, 64):
        with pytest.raises(InputError, match="follow"):
            unpack_tensors(frame + bytes(extra))


def header(count: int, version: int = 1, magic: bytes = b"HB") -> bytes:
    return struct.pack("<2sBBI", magic, version, 0, count)


def tensor(code: int, *shape: int, data: bytes = b"") -> bytes:
    return struct.pack(f"<BB6s{len(shape)}Q", code, len(shape), bytes(6), *shape) + data


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (header(0, magic=b"PK"), "no frame"),
        (header(0, version=9), "version 9, this release reads version 1"),
        (header(2**32 - 1), "4294967295 tensors exceed the limit of 3"),
        (header(2), "cut off at tensor 0"),
        (header(1) + tensor(99, 1, data=bytes(8)), "type code 99"),
        (header(1) + tensor(3, *[1] * 9, data=bytes(8)), "9 dimensions"),
        (header(1) + tensor(3, 2**63), "exceeds the limit"),
        (header(1) + tensor(3, 2**32, 2**32), "exceeds the limit"),
        (header(1) + tensor(3, 0, 2**62, 2**62), "exceeds the limit"),
        (header(1) + tensor(3, 2**24), "longer than the frame"),
        (header(1) + tensor(1, 1, data=b"\0\0\0\0\0\0\0\1"), "padded"),
    ],
)
def test_lies_about_lengths(frame, message):
    with pytest.raises(InputError, match=message):
        unpack_tensors(frame)


def test_limit_and_wrong_arguments():
    frame = pack_tensors([torch.zeros(100)])
    assert unpack_tensors(frame, max_bytes=len(frame))
    with pytest.raises(InputError, match="exceed the limit"):
        unpack_tensors(frame, max_bytes=len(frame) - 1)
    for wrong in ("text", None, memoryview(bytes(frame))[::2]):
        with pytest.raises(InputError, match="contiguous buffer"):
            unpack_tensors(wrong)  # type: ignore[arg-type]


def test_random_damage_is_found_or_harmless():
    """A damaged frame raises InputError or is another frame's unique encoding; no other exception, no other outcome."""
    generator = random.Random(1)
    refused = 0
    for round_number in range(6000):
        frame = bytearray(pack_tensors(SAMPLES[round_number % len(SAMPLES)]))
        for _ in range(generator.randint(1, 4)):
            action = generator.randrange(3)
            place = generator.randrange(len(frame) + 1)
            if action == 0 and place < len(frame):
                frame[place] = generator.choice([0, 1, 8, 127, 255, generator.randrange(256)])
            elif action == 1:
                del frame[place : place + generator.randint(1, 16)]
            else:
                frame[place:place] = generator.randbytes(generator.randint(1, 16))
        try:
            out = unpack_tensors(bytes(frame))
        except InputError:
            refused += 1
        else:
            assert pack_tensors(out) == bytes(frame)
    assert 1000 < refused < 6000  # the test saw both outcomes
