"""Views of a client and of three parties with private weights: answers are uniform given their sum, for any net."""

from __future__ import annotations

import torch

from hummingbird.kernels import unpack_words
from hummingbird.serving.message import joined
from tests.support.serving import Foreign, Service, biases, served
from tests.support.serving_nets import doubled

NET = ("--model", "tests.support.serving_nets:doubled", "--input", "4", "--owner", "1", "--window", "30:0")


def test_answers_of_a_net_that_doubles_last_are_uniform_given_their_sum() -> None:
    """Without a share of zero every word would be even, and say more than the result does."""
    rows, net = 3000, doubled()
    x = torch.rand(1, 4).expand(rows, 4).contiguous()  # of the same image over and over
    with torch.no_grad():
        expected = net(x)
    with Service(*NET, "--max-batch", str(rows), parties=3) as service:
        foreign = Foreign(service)
        known = foreign.service
        answers = [call.result() for call in foreign.begin(foreign.messages(x))]
        foreign.close()
        assert (joined(answers, rows, known) / 2.0**known.result_scale - expected).abs().max() < 1e-3
        count, bits = rows * known.results, known.result_bits
        words = [
            unpack_words(torch.frombuffer(bytearray(answer[8:]), dtype=torch.uint8), count, bits) for answer in answers
        ]
        for one in range(3):
            assert biases(words[one], bits) < 6
            for other in range(one):  # no two of three say anything either
                assert biases(words[one] + words[other], bits) < 6
        assert biases(sum(words, torch.zeros_like(words[0])), bits) > 6  # the sum does: the test can fail
        with service.client() as client:
            assert (client(torch.zeros(2, 4)) - net(torch.zeros(2, 4))).abs().max() < 1e-3
        assert served(service.stop()) == (rows + 2, 2)
