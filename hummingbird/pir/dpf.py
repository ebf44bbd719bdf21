"""The client's side of a distributed point function: keys for two servers.

`kernels/lookups.py` has the construction, the key's format and its check. The servers' bits can be used in three
ways: XOR of the selected rows (row = y_0 ^ y_1); their sum (row = s (y_0 - y_1)); or, if the sums stay at the servers,
shares of s times the row (hummingbird/lookup.py). Do not redraw a pair until s = 1: that would leak.

A key reveals to its server the party, the number of rows, the PRF, and a public random number. All keys for a table
have the same size. The rest of a single key looks random to anybody who cannot break the PRF; a seed has 127 secret
bits. AES is modelled as an ideal cipher with a fresh public key for each pair, so that security does not decrease with
the number of pairs (Guo, Katz, Wang and Yu, "Efficient and secure multiparty computation from fixed-key block ciphers",
IEEE S&P 2020, explain which hash of a block cipher is secure, and why a fixed key is weaker). ChaCha12 is modelled as a
PRF; published key recoveries reach seven of its rounds (Aumasson et al., FSE 2008), and later ones fewer than eight.
Two servers that combine their keys learn alpha: they must not collude. This module does not detect wrong answers.
"""

from __future__ import annotations

from torch import Tensor

from hummingbird.kernels import lookups
from hummingbird.prg import Stream, new_seed


def generate(alphas: Tensor, rows: int, prf: str = "aes") -> tuple[Tensor, Tensor, Tensor]:
    """Make a pair of keys for each row to look up; with them, two servers select the row without learning which.

    alphas: numbers of the rows, int64 (B,) on the CPU, 0 <= alpha < rows.
    rows: number of rows in the table, 1 to 2^40.
    prf: "aes", the fastest on CPUs, or "chacha12", which GPU servers need; servers see the choice.
    Returns the keys for party 0 and the keys for party 1, uint8 (B, key_bytes) each, and the signs, int64 (B,). A sign
    is +1 or -1: the difference of the two servers' bits for row alpha; it is for the client only. A key has 176 bytes,
    and 17 more for each level of its tree: 346 bytes for 2^20 rows.
    Raises InputError for other arguments, before any key is made; the error names no index. Sends nothing.

        first, second, signs = generate(torch.tensor([3, 70_000]), rows=1 << 20)
    """
    return lookups.generate(alphas, rows, prf, lambda count: Stream(new_seed()).bytes(count))
