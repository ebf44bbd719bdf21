"""The client's side of a distributed point function: keys for two servers.

`kernels/lookups/dpf.py` has the construction, the key's format and its check. The servers' bits can be used in three
ways: XOR of the selected rows (row = y_0 ^ y_1), their sum (row = s (y_0 - y_1)), and, where the sums stay with the
servers, shares of s times the row (hummingbird/lookup.py). Pairs are never drawn again until s = 1: that would leak.

What a key tells its server: that it is a key, of which party, the number of rows, the PRF, a public random number. All
keys for a table have one size. Everything else of one key alone looks random to whoever cannot break the PRF; a seed
has 127 secret bits. AES is taken as an ideal cipher, whose public key is drawn anew for each pair, so that the number
of pairs costs no security (Guo, Katz, Wang and Yu, "Efficient and secure multiparty computation from fixed-key block
ciphers", IEEE S&P 2020, say which hash of a block cipher is secure, and why a fixed key is weaker). ChaCha12 is taken
as a PRF; published key recoveries reach seven of its rounds (Aumasson et al., FSE 2008) and, since, less than eight.
Two servers that put their keys together have alpha: they must not collude. A server can answer wrongly; nothing here
detects it.
"""

from __future__ import annotations

from torch import Tensor

from hummingbird.kernels.lookups import dpf
from hummingbird.prg import Stream, new_seed


def generate(alphas: Tensor, rows: int, prf: str = "aes") -> tuple[Tensor, Tensor, Tensor]:
    """Keys for party 0 and for party 1, uint8 (B, key_bytes) each, and the signs s = t_0[alpha] - t_1[alpha].

    alphas: int64 (B,) on the CPU, 0 <= alpha < rows. rows: 1 to 2^40. prf: "aes", the fastest on CPUs, or "chacha12",
    which servers with GPUs need; they see which. signs: int64 (B,) of +1 and -1, for the client alone.
    InputError for anything else, before any key is made, and with no index in its message.
    Sends nothing; a key is 176 bytes and 17 more for each level of the tree: 346 for 2^20 rows.

        first, second, signs = generate(torch.tensor([3, 70_000]), rows=1 << 20)
    """
    return dpf.generate(alphas, rows, prf, lambda count: Stream(new_seed()).bytes(count))
