"""Random decoders in conversation: a padded prompt, then word after word, by all parties' code, and by torch at once.

Attention of one to four heads, behind norms or none, MLPs with any activation or a gate, and logits of all words; plans
for a prompt of any length, in windows and ranges that were told, or exact. right: within 2^-5 of the largest logit.
"""

from __future__ import annotations

import copy
import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird import convert, ring
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from tests.fuzz.run import Result, refusal
from tests.support.parties import compute, share

TOLERANCE = 2.0**-5  # of the largest logit
KINDS = ("layer_norm", "rms_norm", "none", "gelu", "silu", "relu", "tanh", "softplus", "gated")


class Recipe(NamedTuple):
    """The parts of net `number`. hidden: places of padding in front of the prompt. told: whether windows are given."""

    number: int
    width: int
    heads: int
    layers: int
    norm: str
    activation: str
    gated: bool
    places: int
    prompt: int
    hidden: int
    words: int
    told: bool
    protocol: str
    aim: str
    parties: int


def recipe(number: int) -> Recipe:
    rng = random.Random(f"decoder {number}")
    heads, places = rng.choice((1, 2, 4)), rng.randint(4, 14)
    prompt = rng.randint(1, places - 1)
    protocol = rng.choice(("masked", "masked", "masked", "gmw"))
    aim = rng.choice(("latency", "throughput", "rounds", "link:0.001:1e9")) if protocol == "masked" else "latency"
    return Recipe(
        number,
        heads * rng.choice((4, 6)),
        heads,
        rng.choice((1, 1, 2)),
        rng.choice(KINDS[:3]),
        rng.choice(KINDS[3:8]),
        rng.random() < 0.3,
        places,
        prompt,
        rng.randrange(prompt),
        rng.choice((5, 20)),
        rng.random() < 0.5,
        protocol,
        aim,
        rng.choice((2, 2, 3)),
    )


class Decoder(nn.Module):
    """The net of a recipe: logits (1, N, words) of word vectors (1, N, width)."""

    def __init__(self, made: Recipe) -> None:
        super().__init__()
        torch.manual_seed(made.number)
        self.made, width = made, made.width
        norms = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm, "none": lambda size: nn.Identity()}
        self.norms = nn.ModuleList(norms[made.norm](width) for _ in range(2 * made.layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(made.layers))
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(made.layers))
        self.gate = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(made.layers * made.gated))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(made.layers))
        self.words = nn.Linear(width, made.words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made = self.made
        for layer in range(made.layers):
            parts = self.qkv[layer](self.norms[2 * layer](x)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (made.heads, -1)).transpose(1, 2) for part in parts)
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + found.transpose(1, 2).flatten(2)
            y = self.norms[2 * layer + 1](x)
            inside = getattr(F, made.activation)(self.up[layer](y))
            x = x + self.down[layer](inside * self.gate[layer](y) if made.gated else inside)
        out: Tensor = self.words(x)
        return out


def judge(number: int) -> Result:
    """Make net `number`, let parties talk about random words, and compare all logits with torch's."""
    made = recipe(number)
    net = Decoder(made).eval()
    kinds = [made.norm, made.activation, *["gated"] * made.gated]
    result = Result(number, "raw", protocol=f"{made.protocol}, {made.aim}", parties=made.parties, kinds=kinds)
    result.weights, result.windows = "public", "windows" if made.told else "exact"
    texts = torch.randn(20, made.places, made.width)
    words, hidden = texts[:1, : made.places - made.hidden], made.hidden
    try:
        with torch.no_grad():
            rest = net(torch.cat([words, torch.zeros(1, hidden, made.width)], 1))
        expected = rest[:, made.prompt - 1 - hidden : made.places - hidden]
        bits = None
        if made.told:
            bits = BitConfig(BitWindow(24, 8)).with_rows(hummingbird.find_rows(net, texts))
        example = torch.zeros(1, made.places, made.width)
        private = convert.convert_decoder(net, example, made.prompt, bits, protocol=made.protocol, aim=made.aim)
        got = _talked(private, torch.cat([words[:, :1].expand(1, hidden, -1), words], 1), made)
        result.error, result.largest = float((got - expected).abs().max()), float(expected.abs().max())
        result.bound = TOLERANCE * result.largest
        result.ratio = result.error / result.bound
        result.verdict = "right" if result.ratio <= 1 else "wrong"
    except Exception as error:  # noqa: BLE001 - whatever a net provokes is its verdict
        result.verdict, result.reason = refusal(error)
    return result


def _talked(private: PrivateDecoder, x: Tensor, made: Recipe) -> Tensor:
    def party(session: Session, mine: Tensor) -> Shared:
        talk, own = copy.deepcopy(private).conversation(session), Shared(mine)
        rows = [talk.read(own[:, : made.prompt], made.hidden)]
        rows += [talk.read(own[:, place : place + 1]) for place in range(made.prompt, made.places)]
        return Shared(torch.cat([row.share for row in rows], 1), rows[0].scale)

    outputs = compute(made.parties, party, share(ring.encode(x), made.parties))
    total = outputs[0].share.clone()
    for other in outputs[1:]:
        total += other.share
    return ring.decode(total, outputs[0].scale)


def details(number: int) -> str:
    return f"{recipe(number)}\n{judge(number)}"
