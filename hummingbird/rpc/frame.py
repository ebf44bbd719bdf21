"""The binary encoding of a list of tensors for the services: no pickle, every length checked before use.

    frame  = "HB", version (1 byte), 0, count (4 bytes), tensor * count
    tensor = type code (1 byte), ndim (1 byte), 6 zero bytes, ndim dimensions (8 bytes each), data, padding to 8 bytes

All numbers are little-endian. The size of every part is a multiple of 8 bytes, so data in an aligned buffer is aligned
and needs no copy. The encoding is unique: padding is zero and nothing may follow, so a decoded frame encodes to itself.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import InputError

VERSION = 1
MAX_BYTES = 4 << 30  # default limit of a frame
MAX_DIMS = 8

_MAGIC = b"HB"
_HEADER = struct.Struct("<2sBBI")
_TENSOR = struct.Struct("<BB6s")
_CODES = {torch.uint8: 1, torch.int32: 2, torch.int64: 3, torch.float32: 4}
_TYPES = {code: dtype for dtype, code in _CODES.items()}
_HINT = "the bytes were damaged, or come from another program or release"


def frame_bytes(layout: Sequence[tuple[torch.dtype, Sequence[int]]]) -> int:
    """Return the exact size in bytes of the frame that holds tensors of these types and shapes.

    layout: (type, shape) of each tensor: frame_bytes([(torch.int64, (3,))]) == 8 + 8 + 8 + 24
    """
    data = sum(_TENSOR.size + 8 * len(shape) + _up(dtype.itemsize * math.prod(shape)) for dtype, shape in layout)
    return _HEADER.size + data


def pack_tensors(tensors: Sequence[Tensor]) -> bytes:
    """Return the frame of tensors: their types, shapes and values as bytes, for one message or file.

    Their types may be uint8, int32, int64 and float32, and they have at most 8 dimensions. They may be on any device.
    Contiguous data is copied once. Raises InputError for another type or more dimensions.
    """
    return b"".join(_parts(tensors))


def pack_pieces(tensors: Sequence[Tensor], size: int) -> Iterator[bytes]:
    """Yield the frame of tensors (`pack_tensors`) in pieces of `size` bytes; the last one may be shorter.

    Each piece is copied only when it is read.
    """
    piece: list[memoryview] = []
    room = size
    for part in _parts(tensors):
        rest = memoryview(part).cast("B")
        while len(rest) >= room:
            yield b"".join([*piece, rest[:room]])
            rest, piece, room = rest[room:], [], size
        piece.append(rest)
        room -= len(rest)
    if room < size:
        yield b"".join(piece)


def _parts(tensors: Sequence[Tensor]) -> list[Any]:
    """Return the buffers whose bytes, one after the other, are the frame of these tensors.

    Raises InputError for a type or a number of dimensions that frames do not have.
    """
    for position, tensor in enumerate(tensors):
        if tensor.dtype not in _CODES or tensor.dim() > MAX_DIMS:
            raise InputError(
                f"cannot encode a tensor of {tensor.dtype} with {tensor.dim()} dimensions",
                where=f"tensor {position}",
                hint=f"types: {', '.join(str(dtype) for dtype in _CODES)}; at most {MAX_DIMS} dimensions",
            )
    parts: list[Any] = [_HEADER.pack(_MAGIC, VERSION, 0, len(tensors))]
    for tensor in tensors:
        parts.append(_TENSOR.pack(_CODES[tensor.dtype], tensor.dim(), bytes(6)))
        parts.append(struct.pack(f"<{tensor.dim()}Q", *tensor.shape))
        parts.append(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        size = tensor.numel() * tensor.element_size()
        parts.append(bytes(_up(size) - size))
    return parts


def unpack_tensors(
    buffer: bytes | bytearray | memoryview, *, max_tensors: int, max_bytes: int = MAX_BYTES
) -> list[Tensor]:
    """Return the list of tensors that a frame holds.

    buffer: the frame's bytes. max_tensors: most tensors that it may hold; pass no more than the message needs, as even
    a tensor without data costs its reader more than its 16 bytes. max_bytes: most bytes of the frame.
    Raises InputError for anything but exactly one well-formed frame within the limits. Nothing is allocated before all
    lengths are checked. The tensors share the memory of a writable aligned buffer; a read-only buffer is copied once,
    since torch has no read-only tensors.
    """
    try:
        view = memoryview(buffer).cast("B")
    except TypeError as error:
        raise InputError(f"not a contiguous buffer of bytes: {error}", where="rpc.frame.unpack_tensors") from None
    if len(view) > max_bytes:
        raise _malformed(f"{len(view)} bytes exceed the limit of {max_bytes}")
    parts = _parse(view, max_bytes, max_tensors)
    if view.readonly:
        data = torch.empty(len(view), dtype=torch.uint8)
        data.numpy().data[:] = view
    else:
        data = torch.frombuffer(view, dtype=torch.uint8)
        if data.data_ptr() % 8:
            data = data.clone()
    return [data[start:end].view(dtype).view(shape) for dtype, shape, start, end in parts]


def _parse(view: memoryview, max_bytes: int, max_tensors: int) -> list[tuple[torch.dtype, tuple[int, ...], int, int]]:
    """Read the headers in a frame; return a list with the type, shape, begin and end of each tensor's data.

    begin, end: offsets in bytes, the end just behind the data. max_bytes: limit of each tensor's number of elements,
    where a dimension of 0 counts as 1. max_tensors: most tensors. Raises InputError unless all headers are valid and
    fit the frame's length exactly.
    """
    if len(view) < _HEADER.size:
        raise _malformed(f"{len(view)} bytes are shorter than a header")
    magic, version, zero, count = _HEADER.unpack_from(view, 0)
    if magic != _MAGIC or zero:
        raise _malformed("this is no frame of tensors")
    if version != VERSION:
        raise _malformed(f"format version {version}, this release reads version {VERSION}")
    if count > max_tensors:
        raise _malformed(f"{count} tensors exceed the limit of {max_tensors}")
    at, parts = _HEADER.size, []
    for position in range(count):
        if at + _TENSOR.size > len(view):
            raise _malformed(f"cut off at tensor {position} of {count}")
        code, ndim, zeros = _TENSOR.unpack_from(view, at)
        if code not in _TYPES or ndim > MAX_DIMS or any(zeros):
            raise _malformed(f"tensor {position} has type code {code} and {ndim} dimensions")
        at += _TENSOR.size
        if at + 8 * ndim > len(view):
            raise _malformed(f"cut off at tensor {position} of {count}")
        shape = struct.unpack_from(f"<{ndim}Q", view, at)
        at += 8 * ndim
        # The product without zeros: torch computes strides from it, so it must be small even where there is no data.
        if math.prod(max(n, 1) for n in shape) > max_bytes:
            raise _malformed(f"tensor {position} of shape {shape} exceeds the limit of {max_bytes} bytes")
        end = at + math.prod(shape) * _TYPES[code].itemsize
        after = at + _up(end - at)
        if after > len(view):
            raise _malformed(f"tensor {position} of shape {shape} is longer than the frame")
        if any(view[end:after]):
            raise _malformed(f"tensor {position} is padded with something other than zeros")
        parts.append((_TYPES[code], shape, at, end))
        at = after
    if at != len(view):
        raise _malformed(f"{len(view) - at} bytes follow the last tensor")
    return parts


def _up(size: int) -> int:
    return (size + 7) & ~7


def _malformed(what: str) -> InputError:
    return InputError(f"malformed frame: {what}", where="rpc.frame.unpack_tensors", hint=_HINT)
