"""`hummingbird.generate`: two parties get the words of plain torch, one of them learns them, errors come first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hummingbird
from hummingbird.errors import AgreementError, InputError
from hummingbird.generation import _chosen
from hummingbird.launching import launch as module
from tests.support import python
from tests.support.causal_nets import PLACES, WIDTH, WORDS, made
from tests.support.covering import every
from tests.support.parties import init_alone
from tests.support.patience import NEVER

PROMPT, SRC = 5, 1
EXAMPLE = torch.zeros(1, PLACES, WIDTH)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties start as forks, which takes less time."""
    python.forking(monkeypatch, module)


def plain(net: Any, numbers: list[int], new: int) -> tuple[list[int], float]:
    """The most likely words after a prompt by plain torch; and the smallest gap of a choice, over the largest logit."""
    words, gaps = list(numbers), []
    for _ in range(new):
        with torch.no_grad():
            padded = words + [0] * (PLACES - len(words))
            logits = net(net.words(torch.tensor([padded])))[0, len(words) - 1]
        best = logits.topk(2).values
        gaps.append(float((best[0] - best[1]) / logits.abs().max()))
        words.append(int(logits.argmax()))
    return words[len(numbers) :], min(gaps)


def texts(session: Any, net: Any, prompts: list[list[int]], new: int) -> dict[str, Any]:
    """Generate after each prompt, which party `SRC` has alone; then with arguments on which the parties disagree."""
    private = hummingbird.convert_decoder(net, EXAMPLE, prompt=PROMPT)
    planned = sum(row.cost.rounds for step in range(new) for row in private.costs(step, 2))
    found: list[Any] = []
    for numbers in prompts:
        given = (net.words.weight, torch.tensor(numbers)) if session.rank == SRC else (None, None)
        with hummingbird.meter() as report:
            found.append(hummingbird.generate(private, *given, new, src=SRC))
    drawn = hummingbird.generate(private, *given, 2, src=SRC, temperature=0.8, top_k=1)
    with pytest.raises(AgreementError, match="new"):
        hummingbird.generate(private, *given, 2 + session.rank, src=SRC)
    with pytest.raises(AgreementError, match="stop"):
        hummingbird.generate(private, *given, 2, src=SRC, stop=[None, 3][session.rank])
    numbers = None if found[-1] is None else found[-1].tolist()
    last = 0 if numbers is None else numbers[2]  # the owner alone knows the word
    with hummingbird.meter() as stopped:
        ended = hummingbird.generate(private, *given, new, src=SRC, stop=last)
    tell = stopped.rows["stop"]
    assert tell.bits_sent == tell.bits_predicted == (0 if numbers is None else tell.rounds * 8 * 28)
    off = {row.layer: row.bits_sent - row.bits_predicted for row in report.rows.values() if row.kind}
    return {"found": found, "drawn": drawn, "rounds": report.total.rounds, "planned": planned, "off": off} | {
        "ended": ended,
        "told": tell.rounds,
    }


@pytest.mark.slow
@pytest.mark.parametrize("prompts", every(2, [[[5, 5, 41]], [[7, 30, 11, 2, 49], [5, 5, 41]]]), ids=["one", "two"])
@pytest.mark.usefixtures("forked")
def test_one_party_gets_the_words_of_plain_torch(prompts: list[list[int]]) -> None:
    net, new = made(seed=1), PLACES - PROMPT + 1
    other, owner = hummingbird.launch(texts, net, prompts, new, timeout=NEVER)
    assert other["found"] == [None] * len(prompts) and other["drawn"] is None
    for numbers, got in zip(prompts, owner["found"], strict=True):
        expected, gap = plain(net, numbers, new)
        assert gap > 2.0**-6  # otherwise equal words would depend on roundings
        assert got.tolist() == expected
    count = expected.index(expected[2]) + 1  # up to the first word like the third
    assert other["ended"] is None and owner["ended"].tolist() == expected[:count]
    assert other["told"] == owner["told"] == count  # after each word, and no word follows the last one
    assert owner["drawn"].tolist() == expected[:2]  # from one word, the most likely
    for party in (other, owner):
        assert party["rounds"] == 2 + party["planned"] + new and not any(party["off"].values()) and party["off"]


@pytest.mark.slow
def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    net = made()
    private = hummingbird.convert_decoder(net, EXAMPLE, prompt=PROMPT)
    table, prompt = net.words.weight, torch.tensor([1, 2])
    most = PLACES - PROMPT + 1
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("expected a private decoder", {"private": net}),
        ("need 17 places, and there are 16", {"new": most + 1}),
        ("new=0", {"new": 0}),
        ("names no party", {"src": 1}),
        ("word vectors", {"table": table[:-1]}),
        ("word vectors", {"table": table[:, :-1]}),
        ("word vectors", {"table": None}),
        ("at table", {"table": torch.full((WORDS, WIDTH), torch.nan)}),
        ("shape \\(6,\\)", {"numbers": torch.arange(PROMPT + 1)}),
        ("shape \\(0,\\)", {"numbers": prompt[:0]}),
        ("shape \\(1, 2\\)", {"numbers": prompt[None]}),
        ("outside of the table", {"numbers": torch.tensor([WORDS])}),
        ("outside of the table", {"numbers": torch.tensor([-1])}),
        ("row numbers", {"numbers": [1, 2]}),
        ("temperature=-1", {"temperature": -1}),
        ("temperature=nan", {"temperature": float("nan")}),
        ("top_k=51", {"top_k": WORDS + 1}),
        ("torch.Generator", {"generator": 3}),
        ("stop=50", {"stop": WORDS}),
        ("stop=\\[\\]", {"stop": []}),
        ("stop=\\[1, 'a'\\]", {"stop": [1, "a"]}),
    ]
    init_alone()
    try:
        right = {"private": private, "table": table, "numbers": prompt, "new": most}
        for message, change in wrong:
            with hummingbird.meter() as report, pytest.raises(InputError, match=message):
                hummingbird.generate(**(right | change))
            assert report.total.rounds == 0
        private.input_range = 0.5
        with pytest.raises(InputError, match="within \\+-0.5, got a larger one \\(at table\\)"):
            hummingbird.generate(**right)
        private.input_range = None
        found = hummingbird.generate(**right)
        assert found is not None and found.tolist() == plain(net, [1, 2], most)[0]
    finally:
        hummingbird.uninit()


def test_words_are_drawn_from_the_most_likely_ones_by_their_shares() -> None:
    logits, generator = torch.tensor([0.0, 2.0, 1.0, -1.0]).double(), torch.Generator().manual_seed(0)
    assert _chosen(logits, 0.0, None, None) == 1
    drawn = torch.tensor([_chosen(logits, 0.5, 2, generator) for _ in range(4000)]).bincount(minlength=4) / 4000
    expected = torch.softmax(torch.tensor([-torch.inf, 4.0, 2.0, -torch.inf]), 0)
    assert float((drawn - expected).abs().max()) < 0.03  # five times the spread of 4000 draws
