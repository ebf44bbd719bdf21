"""The only source of randomness for shares, masks and keys.

A seed is 128 or 256 bits from the operating system, and its size selects the cipher that expands it: 16 bytes are a key
of AES-128 in counter mode, the fastest on a CPU; 32 bytes are a key of ChaCha20 (RFC 8439), which every device computes
with equal results, so that parties on GPUs draw their shares there. A PRF in counter mode is a PRG; a key is used for
one stream only, so the counter starts at 0 and never repeats. Streams for different purposes have different keys:
`derive(seed, "purpose", 3)` hashes the seed with labels, encoded unambiguously, by keyed BLAKE2b. A derived seed has
the size of its parent, so that a session's first seeds select the cipher of all (`CIPHERS`).
torch's generators are never used here: Mersenne Twister (CPU) and Philox (CUDA) are not cryptographic.
"""

from __future__ import annotations

import hashlib
import secrets

import torch

from hummingbird.errors import InputError
from hummingbird.kernels import streams
from hummingbird.kernels.streams import Drawn, blocks_of

CIPHERS = {"aes-128-ctr": 16, "chacha20": 32}  # bytes of a seed
SEED_BYTES = CIPHERS["aes-128-ctr"]


def cipher_of(device: str) -> str:
    """Return the name of the cipher, a key of `CIPHERS`, that is fastest on a type of device: "cpu" or "cuda"."""
    return "aes-128-ctr" if device == "cpu" else "chacha20"


def new_seed(size: int = SEED_BYTES) -> bytes:
    """Draw a seed of 16 or 32 bytes from the operating system."""
    return secrets.token_bytes(size)


def fresh(device: torch.device | str = "cpu") -> Stream:
    """Return a stream of random numbers from a new seed, which no other process has.

    device: of the results. On a CPU the cipher is AES-128, elsewhere ChaCha20.
    """
    return Stream(new_seed(CIPHERS["aes-128-ctr" if torch.device(device).type == "cpu" else "chacha20"]), device)


def derive(seed: bytes, *labels: str | int, size: int | None = None) -> bytes:
    """Derive from a seed a further seed for one purpose; return its bytes.

    labels: texts and numbers that name the purpose. Seeds for different labels are independent; ("a", "bc") and ("ab",
    "c") differ. size: bytes of the result, by default as many as `seed` has. Raises InputError for a `seed` below 16
    bytes.
    """
    if len(seed) < SEED_BYTES:
        raise InputError(f"a seed has at least {SEED_BYTES} bytes, got {len(seed)}", where="prg.derive")
    state = hashlib.blake2b(key=seed, digest_size=size or len(seed), person=b"hummingbird")
    for label in labels:
        data = label.to_bytes(8, "little", signed=True) if isinstance(label, int) else label.encode()
        state.update(bytes([isinstance(label, int)]) + len(data).to_bytes(8, "little") + data)
    return state.digest()


def expands_on_devices(seed: bytes) -> bool:
    """Return whether every device can expand this seed, which is so if it has the size of a key of ChaCha20."""
    return len(seed) == CIPHERS["chacha20"]


class Stream:
    """A source of uniform random bits that follow from one seed: `Stream(seed).words(2, 3)` draws six numbers.

    Each bit is used once. Two streams of one seed give the same values if and only if the same calls are made in the
    same order. Every call begins at a new block of 64 bytes, so that its bits can be computed later, or in another
    order (`leave`).
    seed: 16 bytes (AES-128) or 32 bytes (ChaCha20). device: the device of the results. The attribute `on_device` says
    whether the bits are computed there, which is so for a seed of 32 bytes and a device other than the CPU.
    """

    def __init__(self, seed: bytes, device: torch.device | str = "cpu") -> None:
        if len(seed) not in CIPHERS.values():
            raise InputError(f"a seed has 16 or 32 bytes, got {len(seed)}", where="prg.Stream")
        self.device = torch.device(device)
        self._block = 0  # index of the next block
        # A zero nonce is safe: the key belongs to this stream alone.
        chacha = expands_on_devices(seed)
        self.on_device = chacha and self.device.type != "cpu"
        self._key = streams.chacha20_key(seed, self.device) if chacha else streams.aes128_key(seed)

    @property
    def packs(self) -> bool:
        """Whether this stream packs elements of any width without gaps: with AES-128, a seed of 16 bytes, it does.

        With ChaCha20 (32 bytes) it does not: each element has a register of its own on a GPU.
        """
        return streams.is_aes128(self._key)

    def leave(self, dtype: torch.dtype, *shape: int, width: int | None = None) -> Drawn:
        """Reserve the next blocks of this stream for uniform elements; return an object that computes them later.

        dtype, shape: of the tensor of elements. width: bits of each element, packed without gaps; None: all bits of
        `dtype`.
        """
        drawn = Drawn(self._key, self._block, shape, dtype, width)
        self._block += blocks_of(drawn.nbytes)
        return drawn

    def bytes(self, count: int) -> torch.Tensor:
        """Draw `count` uniform bytes from this stream, uint8 (count,)."""
        return self.leave(torch.uint8, count).octets().to(self.device)

    def words(self, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Draw uniform integers of the given shape: mod 2^64 as int64 or, if `dtype` says so, mod 2^32 as int32."""
        return self.bytes(dtype.itemsize * torch.Size(shape).numel()).view(dtype).view(shape)

    def bits(self, *shape: int) -> torch.Tensor:
        """Draw uniform bits from this stream, uint8 of zeros and ones, of the given shape. A byte gives 8 bits."""
        count = torch.Size(shape).numel()
        packed = self.bytes((count + 7) // 8)
        places = torch.arange(8, dtype=torch.uint8, device=self.device)
        return ((packed[:, None] >> places) & 1).view(-1)[:count].reshape(shape)
