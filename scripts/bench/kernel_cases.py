"""Cases of scripts/bench/kernels.py: each kernel's arguments, and the bytes and operations that it needs at least."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.he.scheme.params import choose
from hummingbird.kernels import Factor, ciphertexts, lookups, registry, streams
from hummingbird.kernels.reference import lookups as plain_dpf
from hummingbird.kernels.reference import lookups as plain_rows
from hummingbird.kernels.shares.packing import Packed
from hummingbird.kernels.streams import Drawn, blocks_of
from hummingbird.prg import Stream

K, M, TABLE = 20, 12, 8  # the window [20:12): one table of 8 bits
TUNED = {  # the case by which a kernel's sizes are searched
    "chacha20": "chacha20",
    "mask_words": "mask_words, drawn",
    "open_words": "unpack_words",
    "compare_opened": "compare_opened, party 1",
    "lift": "lift, party 1",
    "deal_masks": "deal_masks",
    "evaluate_opened": "evaluate_opened, drawn",
    "deal_polynomials": "deal_polynomials",
    "dpf": "dpf.expand",
    "rows": "rows.select_sum",
    "cut": "digits.cut",
    "multiply": "conv2d 64x64x3x3, 36 bits",
    "multiply_wide": "conv2d of shares",
}
_QUARTER, _QUARTERS = 12, 8  # operations of ChaCha's quarter round; of these in a double round
CHACHA20, CHACHA12 = (rounds * _QUARTERS * _QUARTER + 16 for rounds in (10, 6))  # a block: double rounds, and a sum


@dataclass
class Case:
    """run, definition: what computes it on the device, and in plain torch. octets, operations: at least, of one run."""

    name: str
    arguments: tuple[Any, ...]
    elements: int
    octets: float
    operations: float
    run: Callable[..., Any]
    definition: Callable[..., Any]
    unit: str = "int32"
    triton: bool = False


def interpret() -> None:
    """Let Triton's interpreter compute, on the CPU, what has a kernel for GPUs; before Triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # of the card that the interpreter stands for
    _load("cpu")  # they register at import, and would do so after what follows
    _load("gpu")
    for (operation, backend), kernel in list(registry._KERNELS.items()):
        if backend == "gpu" and kernel is not None:
            registry._KERNELS[operation, "cpu"] = kernel


def _load(backend: str) -> None:
    """Import all kernels of a backend."""
    package = importlib.import_module(f"{kernels.__name__}.{backend}")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):  # the library itself
            importlib.import_module(f"{package.__name__}.{module.name}")


def cases(n: int, device: torch.device) -> Iterator[Case]:
    """All kernels on about n elements."""
    _load("gpu")
    source = Stream(bytes(16))
    yield from _relu(n, source)
    yield from _dealing(n)
    yield from _polynomials(n, source)
    yield from _openings(n, source)
    yield from _random(n)
    yield from _lookups(n, source, device)
    yield from _products(n, source)
    yield from _ciphertexts(n)


def _declared(
    name: str, operation: Callable[..., Any], arguments: tuple[Any, ...], n: int, octets: float, work: float = 0.0
) -> Case:
    """A case of an operation of the registry; by default with an operation for each byte."""
    triton = registry._KERNELS.get((operation, "gpu")) is not None
    return Case(name, arguments, n, octets, work or octets, operation, operation, triton=triton)


def _relu(n: int, source: Stream) -> Iterator[Case]:
    """A masked ReLU's three launches: at party 0 from corrections, at another party from its seed."""
    x, key, first = (
        source.words(n),
        streams.chacha20_key(bytes(range(32)), torch.device("cpu")),
        iter(range(0, 9 * n, n)),
    )
    word, ring = CHACHA20 / 16, 36  # operations for a word of 32 bits of a key stream; bits of a correction

    def drawn(dtype: torch.dtype = torch.int32, size: int = n) -> Drawn:
        return Drawn(key, next(first), (size,), dtype)

    def packed(width: int) -> Packed:
        return Packed(source.bytes((n * width + 7) // 8), (n,), width)

    plane, window, table = (n + 7) // 8, K / 8, (n << TABLE) // 8
    mask, frame = drawn(), kernels.pack_words(x, K)
    bits = [drawn(torch.uint8, plane) for _ in range(2)]
    steps = kernels.step_table(x, TABLE), drawn(torch.uint8, table)
    corrections = [mask, packed(ring - K), packed(ring), packed(ring - K), packed(ring)]
    shares, opened, choice = [mask, *(drawn() for _ in range(4))], x & ((1 << K) - 1), source.bytes(2 * plane)
    yield _declared("mask_words, drawn", kernels.mask_words, (x, mask, 0, K), n, n * (8 + window), n * word)
    for party in (0, 1):
        name, operation = f"compare_opened, party {party}", kernels.compare_opened
        read = 2 * window + (32 if party == 0 else 0)  # a sector of memory for an entry of a table
        work = n * (2 * word / 32 + (0 if party == 0 else CHACHA20))  # a block for an entry
        arguments = ([frame, frame], steps[party], *bits, n, K, M, party == 0)
        yield _declared(name, operation, arguments, n, n * (read + 8 + 2 / 8), work)
    for party, words in enumerate((corrections, shares)):
        read = sum(item.width / 8 for item in words if isinstance(item, Packed))
        work = n * word * sum(isinstance(item, Drawn) for item in words)
        arguments = (opened, choice.view(2, -1), *words, K, party == 0)
        yield _declared(f"lift, party {party}", kernels.lift, arguments, n, n * (8 + 2 / 8 + read + 16), work)


def _dealing(n: int) -> Iterator[Case]:
    """A dealer's corrections for two parties, at a window of one table, mod 2^36."""
    keys = [streams.chacha20_key(bytes([party]) * 32, torch.device("cpu")) for party in (0, 1)]
    plane, table, ring = (n + 7) // 8, (n << TABLE) // 8, 36
    both = [(torch.int32, n), (torch.uint8, plane), (torch.uint8, plane)]
    other = [(torch.int32, n), (torch.int64, n), (torch.int32, n), (torch.int64, n), (torch.uint8, table)]
    fields, first = [], 0
    for place, (dtype, size) in enumerate([*both, *other]):
        owners = keys if place < len(both) else keys[1:]
        fields.append([Drawn(key, first, (size,), dtype) for key in owners])
        first += blocks_of(dtype.itemsize * size)
    octets = n * (2 * (ring - K + ring) + (1 << TABLE)) / 8
    drawn = sum(share.nbytes for shares in fields for share in shares)
    work = CHACHA20 * drawn / streams.BLOCK_BYTES
    arguments = (fields, n, K, M, ring, (TABLE,))
    yield _declared("deal_masks", kernels.deal_masks, arguments, n, octets, work)


def _polynomials(n: int, source: Stream) -> Iterator[Case]:
    """A look-up in 2^4 cubics, of corrections and of drawn words, and a dealer's corrections for two parties."""
    w, m, widths = 4, 12, [24, 36, 48, 60]
    values = max(1, n >> w)
    count, opened = values << w, source.words(values)
    packed = [Packed(source.bytes((count * width + 7) // 8), (count,), width) for width in widths]
    key, first, drawn = streams.chacha20_key(bytes(range(32)), torch.device("cpu")), 0, []
    for width in widths:
        drawn.append(Drawn(key, first, (count,), torch.int32 if width <= 32 else torch.int64))
        first += blocks_of(drawn[-1].nbytes)
    for name, coefficients, read, work in (("received", packed, 32, 0), ("drawn", drawn, 0, CHACHA20)):
        arguments = (opened, coefficients, m, w, 2 + 3 * m)  # a sector of memory, or a block, for a coefficient
        octets, operations = values * (16 + 4 * read), float(4 * values * work)
        yield _declared(f"evaluate_opened, {name}", kernels.evaluate_opened, arguments, values, octets, operations)
    pieces = source.words(1 << w, 4) >> 20
    octets, work = count * sum(widths) / 8, CHACHA20 * sum(words.nbytes for words in drawn) / streams.BLOCK_BYTES

    def deal(mask: Tensor, shares: list[list[Drawn]]) -> list[Tensor]:
        return kernels.deal_polynomials(pieces, mask, shares, m, widths)

    arguments = opened, [[words] for words in drawn]
    yield Case("deal_polynomials", arguments, 4 * count, octets, work, deal, deal, triton=True)


def _openings(n: int, source: Stream) -> Iterator[Case]:
    """Masked openings from tensors, and what packs words and bits."""
    x, y, a, b, c, d = (source.words(n) for _ in range(6))
    opened, frame = x & ((1 << K) - 1), kernels.pack_words(x, K)
    table, choice = kernels.step_table(y, TABLE), source.bytes(2 * ((n + 7) // 8)).view(2, -1)
    window = K / 8  # bytes of an opened value
    yield _declared("mask_words", kernels.mask_words, (x, y, 0, K), n, n * (16 + window))
    yield _declared("open_words", kernels.open_words, ([frame, frame], n, K), n, n * (2 * window + 8))
    yield _declared("step_table", kernels.step_table, (y, TABLE), n, n * (8 + 32))
    yield _declared("lookup", kernels.lookup, (opened, table, M, TABLE, (0, 1)), n, n * (8 + 1 + 2 / 8))
    yield _declared("lift", kernels.lift, (opened, choice, x, y, a, b, c, K, True), n, n * (6 * 8 + 2 / 8 + 16))
    yield _declared("rescale", kernels.rescale, (x, y, a, 16, True, 1 << 40), n, n * (3 * 8 + 8))
    yield _declared("select", kernels.select, (x, choice[0], y, a, b, c, d, 16, True, 1 << 40), n, n * (6 * 8 + 17))
    yield _declared("pack_words", kernels.pack_words, (x, 36), n, n * (8 + 4.5))
    yield _declared("unpack_words", kernels.unpack_words, (kernels.pack_words(x, 36), n, 36), n, n * (8 + 4.5))
    yield _declared("from_bits", kernels.from_bits, (choice[0], n), n, n * (8 + 1 / 8))
    yield _declared("to_planes", kernels.to_planes, (x, M, TABLE), n, n * (8 + 1))


def _random(n: int) -> Iterator[Case]:
    """ChaCha20, 8 bytes an element."""
    key, blocks = streams.chacha20_key(bytes(range(32)), torch.device("cpu")), blocks_of(8 * n)
    octets = streams.BLOCK_BYTES * blocks
    yield _declared("chacha20", streams.chacha20, (key, 7, blocks), n, octets, CHACHA20 * blocks)


def _lookups(n: int, source: Stream, device: torch.device) -> Iterator[Case]:
    """Keys expanded and rows summed, at about n rows of 256 bytes and n / 2^15 queries at most."""
    from hummingbird.kernels.gpu.lookups import expand, prepare, select_sum

    rows, queries, row_bytes = min(n, 1 << 20), max(1, min(512, n >> 15)), 256 if n >= 1 << 15 else 8
    leaves = lookups.leaves_of(rows)
    keys = lookups.generate(torch.zeros(queries, dtype=torch.int64), rows, "chacha12", source.bytes)[0]
    nodes = queries * leaves * 3  # a block for the two children of each inner node, two for a leaf
    # Keys come from the CPU: the call takes them from there.
    run = partial(expand, keys, 0, leaves, device)
    wanted = partial(plain_dpf.expand, keys, 0, leaves)
    octets = queries * leaves * lookups.LEAF_BYTES
    yield Case("dpf.expand", (), queries * rows, octets, CHACHA12 * nodes, run, wanted, triton=True)
    data = source.bytes(rows * row_bytes).view(rows, row_bytes)
    bits = source.bytes(queries * ((rows + 7) // 8)).view(queries, -1)

    def summed(bits: Tensor, table: Tensor) -> Tensor:
        return select_sum(bits, table, 32)

    def plain(bits: Tensor, table: Tensor) -> Tensor:
        return plain_rows.select(bits, data, 32)

    octets, work = data.numel() + bits.numel(), float(queries) * data.numel()
    yield Case("rows.select_sum", (bits, prepare(data)), queries * rows, octets, work, summed, plain, "int8", True)


def _products(n: int, source: Stream) -> Iterator[Case]:
    """A convolution and a product of ResNet-18's shapes with weights of 18 bits, exact in all bits, and in the 36 that
    a ReLU reads; operations as if one product did.
    """
    from hummingbird.kernels.gpu.products import balanced, cut

    images = max(1, min(512, n >> 14))
    side = 16 if images > 1 else 4
    x, weight = source.words(images, 64, side, side), source.words(64, 64, 3, 3) >> 46
    a, b = source.words(max(1, min(512, n >> 12)), 512), source.words(512, 1000) >> 46
    shares, count = source.words(64, 64, 3, 3), 5

    def signed(x: Tensor) -> Tensor:
        return torch.stack([part.to(torch.int8) for part in balanced(x.permute(0, 2, 3, 1), 8, count)])

    yield Case(
        "digits.cut",
        (x,),
        x.numel(),
        13.0 * x.numel(),
        13.0 * x.numel(),
        partial(cut, count=count),
        signed,
        triton=True,
    )

    def both(x: Tensor, y: Tensor) -> Tensor:
        return kernels.conv2d(x, y, (1, 1), (1, 1), 1)

    out = images * 64 * (side - 2) ** 2
    octets = 8.0 * (x.numel() + shares.numel() + out)
    yield Case("conv2d of shares", (x, shares), out, octets, out * 576.0, both, both, "float64", True)
    made: dict[int, Factor] = {}  # of a weight, whose parts are made once for a net

    def factor(weight: Tensor) -> Factor:
        return made.setdefault(id(weight), Factor(weight))

    for bits in (64, 36):
        low = (1 << bits) - 1 if bits < 64 else -1

        def convolve(x: Tensor, weight: Tensor, bits: int = bits, low: int = low) -> Tensor:
            return kernels.conv2d(x, factor(weight), (1, 1), (1, 1), 1, bits) & low

        def multiply(a: Tensor, b: Tensor, bits: int = bits, low: int = low) -> Tensor:
            return kernels.matmul(a, factor(b), bits) & low

        out = images * 64 * (side - 2) ** 2
        octets = 8 * (x.numel() + weight.numel() + out)
        name = f"conv2d 64x64x3x3, {bits} bits"
        yield Case(name, (x, weight), out, octets, out * 576.0, convolve, convolve, "float64", True)
        out = len(a) * 1000
        octets = 8 * (a.numel() + b.numel() + out)
        name = f"matmul 512x1000, {bits} bits"
        yield Case(name, (a, b), out, octets, out * 512.0, multiply, multiply, "float64", True)


def _ciphertexts(n: int) -> Iterator[Case]:
    """The transforms of a ciphertext's residues, in and out of memory once, and an operation for each butterfly."""
    ring = choose(2048, 2).ring
    count = max(1, min(2048, n // (2 * 2048)))
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-(1 << 24), 1 << 24, (count, 2, 2048), dtype=torch.int32, generator=generator)
    for name, operation in (("ntt", ring.ntt), ("intt", ring.intt)):
        yield Case(name, (x,), x.numel(), 8.0 * x.numel(), 11.0 / 2 * x.numel(), operation, operation)
    weights = torch.randint(-(1 << 14), 1 << 14, (1, 4, 16), generator=generator).double()
    index = torch.arange(16, dtype=torch.int32).view(1, 1, -1)
    y = torch.randint(-(1 << 24), 1 << 24, (16, 2, 2, 2048), dtype=torch.int32, generator=generator)
    linear = partial(ciphertexts.linear, ring)
    octets = 4.0 * y[0].numel() * 20
    yield Case("linear", (weights, index, y), 4 * y[0].numel(), octets, 64.0 * y[0].numel(), linear, linear, "float64")
