"""The caching evaluator against plain runs of the twin with the same random numbers, and what it refuses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph import OPS
from hummingbird.search import ComparingLayer, Evaluator, Group, group_layers
from hummingbird.search.cached import CachedEvaluator, layer_seed
from hummingbird.search.evaluator import FunctionEvaluator

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
GROUPINGS: dict[str, Any] = {
    "layer": "layer",
    "apart": {"ends": ["relu", "clamp"], "middle": ["relu#1", "pool"]},  # not contiguous
    "crossed": {"a": ["relu", "pool"], "b": ["relu#1", "clamp"]},
}


def data() -> tuple[nn.Module, Tensor, Tensor]:
    """A net, and images in the order of their margins, so that the evaluator's batches are those of the test."""
    torch.manual_seed(3)
    net, images = Residual().eval(), torch.randn(COUNT, 2, 8, 8)
    with torch.no_grad():
        logits = net(images)
    labels = torch.where(torch.rand(COUNT) < 0.8, logits.argmax(1), torch.randint(5, (COUNT,)))
    chosen = labels[:, None]
    margins = logits.gather(1, chosen) - logits.scatter(1, chosen, -torch.inf).amax(1, keepdim=True)
    order = margins[:, 0].argsort(stable=True)
    return net, images[order], labels[order]


NET, IMAGES, LABELS = data()


def groups_of(by: Any) -> list[Group]:
    return group_layers([ComparingLayer(name, 10, 1000) for name in NAMES], by)


def plain(protocol: str, parties: int = 2, seed: int = 0) -> Callable[[BitConfig], float]:
    """The accuracy by `simulate`, every layer's numbers drawn from the evaluator's seed for layer and batch."""
    known: dict[tuple[BitWindow, ...], float] = {}

    def evaluate(config: BitConfig) -> float:
        key = tuple(config.window(name) for name in NAMES)
        if key not in known:
            twin: Any = hummingbird.simulate(NET, config, protocol, parties, seed=0)
            layers, right = dict(twin._layers), 0
            for number, (x, y) in enumerate(zip(IMAGES.split(BATCH), LABELS.split(BATCH), strict=True)):
                for name, layer in layers.items():

                    def run(*values: Tensor, name: str = name, layer: Any = layer, number: int = number) -> Tensor:
                        twin._compare.restart(layer_seed(seed, name, number))
                        return layer(*values)

                    twin._layers[name] = run
                with torch.no_grad():
                    right += int((twin(x).argmax(1) == y).sum())
            known[key] = right / COUNT
        return known[key]

    return evaluate


def cached(**options: Any) -> CachedEvaluator:
    return CachedEvaluator(NET, IMAGES, LABELS, batch=BATCH, **options)


Question = tuple[Mapping[str, BitWindow], Group, Sequence[BitWindow]]


def questions(groups: Sequence[Group], draw: random.Random, count: int) -> list[Question]:
    """Prefixes of all lengths, each with some windows for the next group."""
    asked = []
    for number in range(count):
        depth = number % len(groups)
        chosen = [draw.choice(WINDOWS) for _ in range(depth)]
        pairs = zip(groups[:depth], chosen, strict=True)
        prefix = {layer.name: window for group, window in pairs for layer in group.layers}
        asked.append((prefix, groups[depth], draw.sample(WINDOWS, 3)))
    return asked


@pytest.mark.parametrize("memory", [0, 60_000, 1 << 30])
@pytest.mark.parametrize("by", list(GROUPINGS))
@pytest.mark.parametrize(("protocol", "parties"), [("masked", 2), ("gmw", 3)])
def test_it_is_the_twin_with_the_same_random_numbers(protocol: str, parties: int, by: str, memory: int) -> None:
    groups, seen = groups_of(GROUPINGS[by]), set()
    evaluator = cached(protocol=protocol, parties=parties, seed=5, memory=memory)
    expected = FunctionEvaluator(plain(protocol, parties, 5), groups)
    assert isinstance(evaluator, Evaluator)
    for prefix, group, windows in questions(groups, random.Random(memory), 12):
        answers = evaluator.accuracy(prefix, group, windows, 0.0)
        assert answers == expected.accuracy(prefix, group, windows, 0.0)
        seen.update(answers)
    assert len(seen) > 3  # windows count


def test_the_order_of_questions_and_earlier_answers_change_nothing() -> None:
    groups, draw = groups_of("layer"), random.Random(1)
    asked = [(q, floor) for q in questions(groups, draw, 16) for floor in (0.0, 0.3, 0.62, 0.95)]
    truth = [cached(seed=2).accuracy(*question, 0.0) for question, _ in asked[::4]]
    answers = []
    for seed in (1, 2):
        evaluator, order = cached(seed=2, memory=seed << 16), list(range(len(asked)))
        random.Random(seed).shuffle(order)
        found = {number: evaluator.accuracy(*asked[number][0], asked[number][1]) for number in order}
        answers.append([found[number] for number in range(len(asked))])
    assert answers[0] == answers[1]
    below = 0
    for number, (_, floor) in enumerate(asked):
        for value, true in zip(answers[0][number], truth[number // 4], strict=True):
            assert value == true if true >= floor else value < floor
            below += true < floor
    assert 20 < below < 3 * len(asked) - 20


def test_a_floor_that_is_reached_exactly_is_told() -> None:
    evaluate, group = plain("masked"), groups_of("layer")[0]
    for window in WINDOWS:
        true = evaluate(BitConfig(EXACT, {**dict.fromkeys(NAMES, EXACT), "relu": window}))
        above = float(torch.nextafter(torch.tensor(true, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)))
        assert cached().accuracy({}, group, [window], true) == [true]
        assert cached().accuracy({}, group, [window], above) == [0.0]


def test_a_floor_above_all_right_needs_no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search asks so for what may only lose to a window that is right on all images."""
    (group, *_), evaluator = groups_of("layer"), cached()
    runs = counted(monkeypatch)
    assert evaluator.accuracy({}, group, [EXACT], 1 + 2**-52) == [0.0] and not sum(runs)
    assert evaluator.accuracy({}, group, [EXACT], 0.0)[0] > 0


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
    evaluator, groups = cached(), groups_of("layer")
    prefix = {"relu": BitWindow(21, 13), "relu#1": BitWindow(21, 13)}
    ran = counted(monkeypatch)
    evaluator.accuracy(prefix, groups[2], WINDOWS[:1], 0.0)
    assert sum(ran) == 4 * COUNT
    for windows, convolutions in ((WINDOWS[1:4], 2 * 3), (WINDOWS[4:], 2), (WINDOWS, 0)):
        ran.clear()
        evaluator.accuracy(prefix, groups[2], windows, 0.0)
        assert sum(ran) == convolutions * COUNT  # conv3 and conv4 for each window
    ran.clear()
    evaluator.accuracy({**prefix, "pool": EXACT}, groups[3], [BitWindow(19, 16)], 0.0)
    assert sum(ran) == 2 * COUNT  # conv3 once more, to the next cut, and conv4


def test_a_window_below_the_floor_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, group = cached(), groups_of("layer")[3]
    exact = evaluator.accuracy({}, group, [EXACT], 0.0)[0]
    assert exact < 1.0
    ran = counted(monkeypatch)
    assert evaluator.accuracy({}, group, [BitWindow(0, 0)], 1.0) == [0.0]
    assert sum(ran) == BATCH  # the wrong answers come first


def test_a_whole_config_and_seeds() -> None:
    config = BitConfig(BitWindow(19, 15), {"pool": BitWindow(22, 14)})
    answers = {seed: cached(seed=seed).config_accuracy(config) for seed in range(6)}
    for seed in (0, 1):
        assert answers[seed] == plain("masked", seed=seed)(config)
    assert len(set(answers.values())) > 1
    with pytest.raises(ConfigError, match="nonsense"):
        cached().config_accuracy(BitConfig(layers={"nonsense": EXACT}))


def test_the_net_is_left_as_it_is_and_may_change_afterwards() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    net[1].eval()
    modes, state = [m.training for m in net.modules()], {key: value.clone() for key, value in net.state_dict().items()}
    images, labels = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    evaluator = CachedEvaluator(net, images, labels)
    assert 0 < evaluator.config_accuracy(BitConfig(BitWindow(20, 15))) <= 1
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    with torch.no_grad():
        net[4].weight.zero_()
    evaluator = CachedEvaluator(net, images, labels)
    assert evaluator.config_accuracy(BitConfig()) == float((labels == int(net[4].bias.argmax())).double().mean())


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
        (ONE, X, Y.int(), "labels", "labels are torch.int32"),
        (ONE, X, Y[:, None], "labels", r"labels are torch.int64 \(8, 1\)"),
        (ONE, X, Y.tolist(), "labels", "labels are list"),
        (ONE, X, Y + 1, "labels", "from 1 to 3, but the net has 3 classes"),
        (ONE, X, Y - 1, "labels", "from -1 to 1, but the net has 3 classes"),
        (nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU()), X, Y, "net", r"logits of shape \(1, 3, 2, 2\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), X, Y, "net", "no comparing layers"),
    ],
)
def test_what_does_not_fit_is_refused(net: nn.Module, images: Any, labels: Any, where: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        CachedEvaluator(net, images, labels)
    assert caught.value.where == where and caught.value.hint


@pytest.mark.parametrize("options", [{"protocol": "bgw"}, {"parties": 1}, {"batch": 0}])
def test_other_arguments_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        CachedEvaluator(ONE, X, Y, **options)
    assert caught.value.where in options and caught.value.hint


def test_seeds_of_layers_and_batches_differ() -> None:
    seeds = {layer_seed(*where) for where in itertools.product((0, 1, 10), ("a", "b", "0 a"), range(12))}
    assert len(seeds) == 3 * 3 * 12 and all(0 <= seed < 2**63 for seed in seeds)
