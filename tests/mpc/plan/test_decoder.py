"""Parties that read a prompt and then word after word get the logits of the plain net at once."""

from __future__ import annotations

import copy

import pytest
import torch

import hummingbird
from hummingbird import convert, ring
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from tests.support.causal_nets import PLACES, WIDTH, WORDS, made
from tests.support.covering import every
from tests.support.parties import compute, share

PROMPT, HIDDEN = 5, 2
EXAMPLE = torch.zeros(1, PLACES, WIDTH)


class Talk:
    """A conversation: a prompt with `HIDDEN` places of padding, then single words. Returns all logits in a row."""

    def __init__(self, decoder: PrivateDecoder) -> None:
        self.decoder = decoder

    def __call__(self, session: Session, x: Shared) -> Shared:
        talk = self.decoder.conversation(session)
        rows = [talk.read(x[:, :PROMPT], HIDDEN)]
        rows += [talk.read(x[:, place : place + 1]) for place in range(PROMPT, x.shape[1])]
        assert (talk.used, talk.left) == (x.shape[1], PLACES - x.shape[1])
        if not talk.left:
            with pytest.raises(InputError, match="all 16 places"):
                talk.read(x[:, :1])
        return Shared(torch.cat([row.share for row in rows], 1), rows[0].scale)


def talked(kind: type[Talk], private: PrivateDecoder, x: torch.Tensor) -> torch.Tensor:
    """Let two parties talk, each with a copy of the decoder, about the word vectors x; return the opened result."""

    def party(session: Session, share: torch.Tensor) -> Shared:
        return kind(copy.deepcopy(private))(session, Shared(share))

    outputs = compute(2, party, share(ring.encode(x), 2))
    return ring.decode(outputs[0].share + outputs[1].share, outputs[0].scale)


@pytest.mark.parametrize(
    ("protocol", "told"),
    every(3, [("masked", True), ("masked", False), ("gmw", False)]),
)
def test_word_after_word_in_private_equals_the_net(protocol: str, told: bool) -> None:
    net = made()
    texts = net.words(torch.randint(0, WORDS, (20, PLACES))).detach()
    bits = BitConfig(BitWindow(22, 10)).with_rows(hummingbird.find_rows(net, texts)) if told else None
    private = convert.convert_decoder(net, EXAMPLE, prompt=PROMPT, bits=bits, protocol=protocol)
    words = texts[:1, : PLACES - HIDDEN]
    padded = torch.cat([words[:, :1].expand(1, HIDDEN, WIDTH), words], 1)
    got = talked(Talk, private, padded)
    with torch.no_grad():
        expected = net(torch.cat([words, torch.zeros(1, HIDDEN, WIDTH)], 1))[:, PROMPT - 1 - HIDDEN : PLACES - HIDDEN]
    # A softmax errs by up to 2^-7 of its result, a norm and a GELU by about 2^-10: together below 2^-5 of the logits.
    assert float((got - expected).abs().max()) < 2.0**-5 * float(expected.abs().max())


class Refused(Talk):
    def __call__(self, session: Session, x: Shared) -> Shared:
        talk = self.decoder.conversation(session)
        for shape, first in [((1, 1, WIDTH), 0), ((1, PROMPT, WIDTH), PROMPT), ((1, PROMPT, WIDTH), -1)]:
            with pytest.raises(InputError, match="conversation"):
                talk.read(Shared(x.share.expand(shape)), first)
        talk.close()
        assert talk.left == 0
        return x


def test_a_wrong_shape_or_padding_is_refused() -> None:
    private = convert.convert_decoder(made(), EXAMPLE, prompt=PROMPT)
    talked(Refused, private, torch.zeros(1, 1, WIDTH))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="word vectors"):
        convert.convert_decoder(made(), torch.zeros(2, PLACES, WIDTH))
    with pytest.raises(ConfigError, match="prompt"):
        convert.convert_decoder(made(), EXAMPLE, prompt=PLACES + 1)


def test_plans_share_weights_and_steps_have_plans() -> None:
    private = convert.convert_decoder(made(), EXAMPLE, prompt=PROMPT)
    weights: list[set[int]] = [
        {buffer.data_ptr() for name, buffer in net.named_buffers() if name.endswith("weight.code")}
        for net in private.nets
    ]
    assert weights[0] == weights[1] and weights[0]
    assert [private.plan_of(number) for number in (0, 1, PLACES - PROMPT)] == [0, 1, 1]
    with pytest.raises(InputError, match="step 12"):
        private.plan_of(PLACES - PROMPT + 1)
    assert sum(len(requests) for requests in private.requests(2)) > 0
