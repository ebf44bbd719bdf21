"""Selection bits and sums in Triton are the torch reference's: in its interpreter on a CPU, and on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton import interpret, run

# Rows at the edges of leaves and tiles, batches and rows of bytes that fill no tile; expansions of parts of a table.
PROGRAM = """
import pytest, sys, torch
from hummingbird.errors import InputError
from hummingbird.kernels.gpu.lookups import expand
from hummingbird.kernels.gpu.lookups import prepare, select_sum
from hummingbird.kernels.lookups import WIDTHS, generate
from hummingbird.kernels.reference import lookups as plain
from hummingbird.prg import Stream

device, big = torch.device(sys.argv[1]), int(sys.argv[2])
source = Stream(bytes(16))
for size, first, leaves in ((1, 0, 1), (1025, 0, 2), (5000, 1, 3), (5000, 5, 0), (big, 1, 66)):
    alphas = torch.tensor([0, size - 1])
    keys = torch.cat(generate(alphas, size, "chacha12", source.bytes)[:2])
    for batch in (keys, keys[2:3]) if size < 5000 else (keys[:3],):
        expected = plain.expand(batch, first, leaves)
        assert torch.equal(expand(batch, first, leaves, device).cpu(), expected), (size, first, leaves)
with pytest.raises(InputError, match="expected leaves"):
    expand(keys, 0, 1 << 30, device)
with pytest.raises(InputError, match="ChaCha12 keys only"):
    expand(generate(alphas, size, "aes", source.bytes)[0], 0, 1, device)

for batch, size, row_bytes in ((1, 1, 8), (3, 129, 40), (65, 300, 136), (2, 4500, 8)):
    data = source.bytes(size * row_bytes).view(size, row_bytes)
    data[: size // 2] |= 0xF0  # sums that wrap
    bits = source.bytes(batch * (size // 8 + 2)).view(batch, -1)  # spare bits are set
    bits[0] = 255
    table = prepare(data.to(device))
    for width in WIDTHS if size < 300 else (32,):
        expected = plain.select(bits, data, width)
        assert torch.equal(select_sum(bits.to(device), table, width).cpu(), expected), (batch, size, width)
for wrong in ((bits.long(), table, 8), (bits[:, :9], table, 8), (bits, table[:, :7], 16), (bits, table, 24)):
    with pytest.raises(InputError):
        select_sum(wrong[0].to(device), *wrong[1:])
"""


@pytest.mark.slow
def test_triton_computes_the_same() -> None:
    interpret(PROGRAM, "cpu", "70000")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_computes_the_same() -> None:
    run(PROGRAM, "cuda", str(1 << 24))
