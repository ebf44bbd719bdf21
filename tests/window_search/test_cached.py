"""The caching evaluator against plain runs of the twin with the same random numbers, and what it refuses."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph import OPS
from hummingbird.window_search import Evaluator
from hummingbird.window_search.answers import certainty
from hummingbird.window_search.cached import CachedEvaluator, layer_seed, run_seed

COUNT, BATCH = 40, 12  # a last batch that is smaller
WINDOWS = [EXACT, BitWindow(0, 0), BitWindow(21, 13), BitWindow(19, 16), BitWindow(16, 13)]


class Residual(nn.Module):
    """Sums in place over a value that is read again, a ReLU called twice, a maximum, two comparisons in one layer.

    No batch norms: folding them rounds anew, which may turn a comparison.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.conv3, self.conv4 = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.relu, self.pool, self.clamp = nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.ReLU6()
        self.fc = nn.Linear(6 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv1(x))
        y = self.relu(self.conv2(x))
        x += y
        x = self.pool(x)
        y = self.clamp(self.conv3(x))
        x += self.conv4(y)
        return self.fc(torch.flatten(x, 1))


NAMES = ["relu", "relu#1", "pool", "clamp"]


def certain(logits: Tensor, labels: Tensor) -> list[float]:
    """1 / (1 + e^(-margin / 0.4)), the margin in standard deviations of the image's logits: one image at a time."""
    out = []
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        margin = row[label] - max(value for number, value in enumerate(row) if number != label)
        out.append(1 / (1 + math.exp(-margin / 0.4 / statistics.pstdev(row))))
    return out


def data() -> tuple[nn.Module, Tensor, Tensor]:
    """A net, and images in the order of certainty, so that the evaluator's batches are those of the test."""
    torch.manual_seed(3)
    net, images = Residual().eval(), torch.randn(COUNT, 2, 8, 8)
    with torch.no_grad():
        logits = net(images)
    labels = torch.where(torch.rand(COUNT) < 0.8, logits.argmax(1), torch.randint(5, (COUNT,)))
    order = torch.tensor(certain(logits, labels), dtype=torch.float64).argsort(stable=True)
    return net, images[order], labels[order]


NET, IMAGES, LABELS = data()


Truth = dict[tuple[BitWindow, ...], tuple[list[int], list[float]]]


def plain(protocol: str, parties: int = 2, seed: int = 0, labels: Tensor | None = LABELS) -> Callable[..., Any]:
    """Right answers and what certainty keeps, of every image, by `simulate`, each layer's numbers drawn from the
    evaluator's seed for layer and batch; labels: None for the exact net's own answers.
    """
    known: Truth = {}
    with torch.no_grad():
        exact = NET(IMAGES)
    answers = exact.argmax(1) if labels is None else labels
    expected = certain(exact, answers) if labels is None else [1.0] * len(labels)

    def evaluate(config: BitConfig) -> tuple[list[int], list[float]]:
        key = tuple(config.window(name) for name in NAMES)
        if key not in known:
            twin: Any = hummingbird.simulate(NET, config, protocol, parties, seed=0)
            twin._scales = {}  # the search gives weights all their bits under every window
            layers, logits = dict(twin._layers), []
            for number, x in enumerate(IMAGES.split(BATCH)):
                for name, layer in layers.items():

                    def run(*values: Tensor, name: str = name, layer: Any = layer, number: int = number) -> Tensor:
                        twin._compare.restart(layer_seed(seed, name, number))
                        return layer(*values)

                    twin._layers[name] = run
                with torch.no_grad():
                    logits.append(twin(x))
            found = torch.cat(logits)
            kept = [1 - abs(p - q) for p, q in zip(expected, certain(found, answers), strict=True)]
            known[key] = (found.argmax(1) == answers).long().tolist(), kept
        return known[key]

    return evaluate


def cached(labels: Tensor | None = LABELS, **options: Any) -> CachedEvaluator:
    return CachedEvaluator(NET, IMAGES, labels, batch=BATCH, **({"runs": 1} | options))


def configs(draw: random.Random, count: int) -> list[BitConfig]:
    """Windows in one layer, in some, or in all."""
    found = []
    for number in range(count):
        changed = draw.sample(NAMES, 1 + number % len(NAMES))
        found.append(BitConfig(layers={name: draw.choice(WINDOWS) for name in changed if name != "relu"}))
        # relu#1 without an entry would take the window of relu.
        both = {"relu": draw.choice(WINDOWS), "relu#1": draw.choice(WINDOWS)}
        found.append(BitConfig(layers={**found[-1].layers, **both}))
    return found


@pytest.mark.parametrize(
    ("protocol", "parties", "memory", "count"),
    [
        *(("masked", 2, 1 << 30, 4), ("gmw", 3, 60_000, 4)),
        *(
            pytest.param(protocol, parties, memory, 10, marks=pytest.mark.slow)
            for protocol, parties in (("masked", 2), ("gmw", 3))
            for memory in (0, 60_000, 1 << 30)
        ),
    ],
)
def test_it_is_the_twin_with_the_same_random_numbers(protocol: str, parties: int, memory: int, count: int) -> None:
    evaluator = cached(protocol=protocol, parties=parties, seed=5, rank=24, memory=memory)
    truth, seen = plain(protocol, parties, 5), set()
    assert isinstance(evaluator, Evaluator)
    for config in configs(random.Random(memory), count):
        right, kept = truth(config)
        score = evaluator.full(config)
        assert score.answers == sum(right) / COUNT and score.fine == pytest.approx(sum(kept) / COUNT, abs=1e-9)
        assert evaluator.coarse(config) == pytest.approx(sum(kept[:24]) / 24, abs=1e-9)
        seen.add(score.answers)
    assert len(seen) > 3  # windows count


def test_without_labels_the_exact_net_is_right() -> None:
    evaluator, truth = cached(None), plain("masked", labels=None)
    assert evaluator.full(BitConfig()) == (1.0, 1.0) and evaluator.coarse(BitConfig()) == 1.0
    config = BitConfig(BitWindow(19, 15))
    # The order of the images is that of certainty of the exact net's answers: batches are others than in `plain`.
    score = evaluator.full(config)
    assert 0.3 < score.answers < 1 and 0.3 < score.fine < 1
    with torch.no_grad():
        expected = NET(IMAGES).argmax(1)
    assert score.answers == float((evaluator.outputs(config).argmax(1) == expected).double().mean())
    assert truth(BitConfig())[0] == [1] * COUNT


def test_without_labels_certainty_that_rises_has_moved_too() -> None:
    """Half of the images become more certain of their answer, half less: the finer score counts both."""
    evaluator = cached(None)
    with torch.no_grad():
        exact = NET(IMAGES)
    sure = certain(exact, exact.argmax(1))
    for config in (BitConfig(BitWindow(19, 15)), BitConfig(layers={"clamp": BitWindow(17, 14)})):
        now = certain(evaluator.outputs(config), exact.argmax(1))
        moved = [q - p for p, q in zip(sure, now, strict=True)]
        assert min(moved) < -0.01 and max(moved) > 0.01
        assert evaluator.full(config).fine == pytest.approx(1 - statistics.fmean(map(abs, moved)), abs=1e-4)


def test_a_floor_that_is_met_exactly_gives_the_score() -> None:
    for config in configs(random.Random(3), 2):
        true = cached(seed=2).full(config)
        assert cached(seed=2).full(config, true.answers) == true
        if true.answers < 1:
            above = cached(seed=2).full(config, true.answers + 0.5 / COUNT)
            assert above.answers < true.answers + 0.5 / COUNT


def test_runs_are_means_over_seeds() -> None:
    config, four = BitConfig(BitWindow(19, 15)), cached(seed=7, runs=4)
    ones = [cached(seed=run_seed(7, run)).full(config) for run in range(4)]
    assert four.full(config).answers == pytest.approx(sum(score.answers for score in ones) / 4, abs=1e-12)
    assert four.full(config).fine == pytest.approx(sum(score.fine for score in ones) / 4, abs=1e-12)
    assert len({score.fine for score in ones}) == 4 and run_seed(7, 0) == 7


def test_the_order_of_questions_and_earlier_answers_change_nothing() -> None:
    asked = [(config, floor) for config in configs(random.Random(1), 4) for floor in (0.0, 0.3, 0.62, 0.95)]
    truth = [cached(seed=2).full(config) for config, _ in asked[::4]]
    answers = []
    for seed in (1, 2):
        evaluator, order = cached(seed=2, memory=seed << 16), list(range(len(asked)))
        random.Random(seed).shuffle(order)
        found = {}
        for number in order:
            evaluator.coarse(asked[number - 1][0])
            found[number] = evaluator.full(*asked[number])
        answers.append([found[number] for number in range(len(asked))])
    below = 0
    for found_ones in answers:
        for number, (_, floor) in enumerate(asked):
            value, true = found_ones[number], truth[number // 4]
            assert value == true if true.answers >= floor else value.answers < floor
            below += true.answers < floor
    assert 8 < below < 2 * len(asked) - 8


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each convolution that runs from here on."""
    ran: list[int] = []
    conv = OPS["conv"]

    def counting(attrs: Any, x: Tensor) -> Tensor:
        ran.append(len(x))
        return conv(attrs, x)  # type: ignore[no-any-return]

    monkeypatch.setitem(OPS, "conv", counting)
    return ran


def test_only_the_tail_runs_and_nothing_for_a_known_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = cached(rank=24)
    ran = counted(monkeypatch)
    evaluator.full(BitConfig(layers={"pool": WINDOWS[2]}))
    assert sum(ran) == 4 * COUNT
    for number, (name, convolutions) in enumerate((("pool", 2), ("clamp", 2), ("clamp", 1), ("pool", 2))):
        ran.clear()
        evaluator.full(BitConfig(layers={name: BitWindow(20 + number, 12)}))
        # conv3 and conv4 behind the pooling; conv3 once more, up to the clamp; what lies before the pooling is kept.
        assert sum(ran) == convolutions * COUNT, number
    ran.clear()
    evaluator.full(BitConfig(layers={"pool": WINDOWS[2]}))
    assert not ran
    evaluator.coarse(BitConfig(layers={"pool": BitWindow(22, 12)}))
    assert sum(ran) == 2 * 24


def test_a_window_below_the_floor_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, config = cached(), BitConfig(layers={"clamp": BitWindow(0, 0)})
    exact = evaluator.full(BitConfig())
    assert exact.answers < 1.0
    ran = counted(monkeypatch)
    assert evaluator.full(config, 1.0).answers < 1.0
    assert sum(ran) <= 4 * BATCH  # the wrong answers come first
    assert evaluator.full(config) == cached().full(config)  # what was given up is not kept


def test_a_whole_config_and_seeds() -> None:
    config = BitConfig(BitWindow(19, 15), {"pool": BitWindow(22, 14)})
    answers = {seed: cached(seed=seed).full(config).answers for seed in range(3)}
    for seed in (0, 1):
        assert answers[seed] == sum(plain("masked", seed=seed)(config)[0]) / COUNT
    assert len(set(answers.values())) > 1
    with pytest.raises(ConfigError, match="nonsense"):
        cached().full(BitConfig(layers={"nonsense": EXACT}))


def test_logits_that_are_not_finite_agree_with_nothing() -> None:
    logits = torch.tensor([[1.0, 2.0], [float("inf"), 0.0], [float("nan"), 1.0]])
    assert certainty(logits, torch.tensor([1, 0, 1])).tolist() == [pytest.approx(1 / (1 + math.exp(-5))), 0.0, 0.0]


def test_the_net_is_left_as_it_is_and_may_change_afterwards() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    net[1].eval()
    modes, state = [m.training for m in net.modules()], {key: value.clone() for key, value in net.state_dict().items()}
    images, labels = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    evaluator = CachedEvaluator(net, images, labels)
    assert 0 < evaluator.full(BitConfig(BitWindow(20, 15))).answers <= 1
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    with torch.no_grad():
        net[4].weight.neg_()
        net[4].bias.neg_()
    expected = net.eval()(images.float()).argmax(1)
    evaluator = CachedEvaluator(net, images, labels)
    assert evaluator.full(BitConfig()).answers == float((labels == expected).double().mean())


ONE = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
X, Y = torch.randn(8, 1, 2, 2), torch.arange(8) % 3


@pytest.mark.parametrize(
    ("net", "images", "labels", "where", "what"),
    [
        (ONE, X[:0], Y[:0], "images", "no images"),
        (ONE, X.long(), Y, "images", "floating-point tensor, got torch.int64"),
        (ONE, [1.0], Y, "images", "got list"),
        (ONE, X.clone().index_fill(0, torch.tensor(3), float("nan")), Y, "images", "NaN or infinity"),
        (ONE, torch.randn(8, 1, 3, 3), Y, "images", r"cannot take images of shape \(1, 1, 3, 3\)"),
        (ONE, X, Y[:7], "labels", "8 images and 7 labels"),
        (ONE, X, Y.float(), "labels", r"labels are torch.float32 \(8,\), and the net gives \(N, 3\)"),
        (ONE, X, Y[:, None], "labels", r"labels are torch.int64 \(8, 1\)"),
        (ONE, X, Y.tolist(), "labels", "labels are list"),
        (ONE, X, Y + 1, "labels", "from 1 to 3, but the net has 3 classes"),
        (ONE, X, Y - 1, "labels", "from -1 to 1, but the net has 3 classes"),
        (nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU()), X, Y, "labels", r"the net gives \(N, 3, 2, 2\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), X, Y, "net", "no comparing layers"),
    ],
)
def test_what_does_not_fit_is_refused(net: nn.Module, images: Any, labels: Any, where: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        CachedEvaluator(net, images, labels)
    assert caught.value.where == where and caught.value.hint


@pytest.mark.parametrize("options", [{"protocol": "bgw"}, {"parties": 1}, {"batch": 0}, {"runs": 0}, {"rank": 0}])
def test_other_arguments_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        CachedEvaluator(ONE, X, Y, **options)
    assert caught.value.where in options and caught.value.hint


def test_seeds_of_layers_and_batches_differ() -> None:
    seeds = {layer_seed(*where) for where in itertools.product((0, 1, 10), ("a", "b", "0 a"), range(12))}
    assert len(seeds) == 3 * 3 * 12 and all(0 <= seed < 2**63 for seed in seeds)
