"""hummingbird.graph on whole nets: every problem is listed, the net stays as it is, torchvision's CNNs are the same."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from hummingbird.errors import InputError, ModelError
from hummingbird.graph import fingerprint, problems, run, trace
from tests.graph.ops.test_vocabulary import FOLDED, Call, image, same, seeded, warm  # noqa: F401

torch.set_num_threads(1)


class Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LocalResponseNorm(2), nn.CrossMapLRN2d(2)])
        self.pad = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.recurrent = nn.GRU(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[1](self.pad(self.norms[0](x)))
        y, _ = self.recurrent(x[0])
        return F.interpolate(x, 8) / y.floor() + self.norms[0](x)


def test_every_problem_is_listed_once_by_name() -> None:
    found = problems(Wrong())
    assert [(problem.name, problem.what.split()[0]) for problem in found] == [
        ("norms.0", "LocalResponseNorm"),
        ("norms.1", "CrossMapLRN2d"),
        ("recurrent", "GRU"),
        ("floor", "method"),
    ]
    assert all(problem.hint for problem in found)
    with pytest.raises(ModelError) as error:
        trace(Wrong())
    assert error.value.problems == found


@pytest.mark.parametrize(
    "layer",
    [nn.LocalResponseNorm(2), nn.Hardshrink()] + [nn.LSTM(8, 8), nn.GRU(8, 8)],
    ids=lambda layer: type(layer).__name__,
)
def test_unsupported_layers_have_a_hint_of_their_own(layer: nn.Module) -> None:
    (problem,) = problems(nn.Sequential(nn.ReLU(), layer))
    assert problem.name == "1" and type(layer).__name__ in problem.what
    assert problem.hint and problem.hint != problems(nn.Sequential(nn.Unfold(2)))[0].hint


BAD: dict[str, tuple[nn.Module, str]] = {
    "pool over a size": (Call(lambda x: F.avg_pool2d(x, x.size(3))), "fixed integer"),
    "dropout left on": (Call(lambda x: F.dropout(x, 0.5)), "active at inference"),
    "indices": (nn.MaxPool2d(2, return_indices=True), "return_indices"),
    "a jump": (Call(lambda x: x.floor()), "floor"),
    "a power of two values": (Call(lambda x: x**x), "base"),
    "logsumexp": (Call(lambda x: x.logsumexp(1)), "log_softmax is known"),
    "clamp by tensors": (Call(lambda x: x.clamp(max=x)), "bounds"),
    "maximum over places": (Call(lambda x: torch.max(x, 1)[0]), "over the places"),
    "sum of comparisons": (Call(lambda x: (x > 0) + (x > 1)), "a comparison"),
    "comparison as result": (Call(lambda x: x > 0), "returns a bool"),
    "antialias": (Call(lambda x: F.interpolate(x, 8, mode="bilinear", antialias=True)), "antialias"),
    "cast": (Call(lambda x: x.double()), "a cast"),
    "true size division": (Call(lambda x: x.sum(1) / x.size(1)), "use mean"),
    "weights from data": (Call(lambda x: F.linear(x, x[0, 0])), "depends on the net's input"),
    "constant output": (Call(lambda x: torch.ones(3)), "one tensor"),
    "constant in a tuple": (Call(lambda x: (x, torch.ones(3))), "everything that the net returns"),
    "no output": (Call(lambda x: [None, 3]), "no tensor"),
    "mask": (Call(lambda x: x[x > 0]), "fixed integers"),
    "unknown argument": (Call(lambda x: x.mean(1, dtype=torch.float64)), "dtype"),
    "batch statistics": (nn.BatchNorm2d(4, track_running_stats=False), "running statistics"),
    "softmax without dim": (nn.Softmax(), "give dim"),
    "lazy": (nn.LazyLinear(3), "on an example"),
    "half": (nn.Linear(8, 8).half(), "float16"),
    "weight_norm": (nn.utils.weight_norm(nn.Linear(8, 8)), "weight_norm"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("net", "words"), BAD.values(), ids=BAD.keys())
def test_problem_says_what_and_what_instead(net: nn.Module, words: str) -> None:
    found = problems(nn.Sequential(nn.ReLU(), net))
    assert found and any(words in str(problem) for problem in found), found


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value: float) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.PReLU())
    with torch.no_grad():
        net[1].bias[3] = net[2].weight[0] = value
    assert [(problem.name, problem.what) for problem in problems(net)] == [
        ("1", "bias holds NaN or infinity"),
        ("2", "weight holds NaN or infinity"),
    ]


def test_hooks_on_a_layer_are_not_lost_silently() -> None:
    net = nn.Sequential(nn.Linear(8, 8))
    net[0].register_forward_hook(lambda module, x, y: y * 2)
    assert "hook" in problems(net)[0].what


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


def test_control_flow_names_the_module_and_line_and_hides_nothing_else() -> None:
    found = problems(nn.Sequential(nn.Hardshrink(), nn.Sequential(Branch(), nn.ReLU()), nn.Hardshrink()))
    assert {problem.name for problem in found} == {"0", "1.0", "2"}
    branch = next(problem for problem in found if problem.name == "1.0")
    assert "control flow" in branch.what and "if x.sum() > 0" in branch.what and "test_nets.py" in branch.what
    assert [problem.name for problem in problems(Branch())] == ["net"]


def test_inputs_of_the_net() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    class Optional(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None = None, how: tuple[int, ...] = (2,), *rest: Tensor) -> Tensor:
            return x * how[0] if mask is None else x * mask

    assert [problem.name for problem in problems(Two())] == ["y"]
    same(Optional(), image())
    with pytest.raises(InputError, match="1 input"):
        run(trace(nn.ReLU()), image(), image())
    with pytest.raises(InputError, match="torch.nn.Module"):
        trace(F.relu)  # type: ignore[arg-type]


# The net stays as it is; fingerprints -------------------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
        self.calls = 0
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.add_(1)
        self.last = x
        return self.body(x)


def test_net_is_not_touched_and_is_taken_in_eval_mode() -> None:
    net = Counting().train()
    state = copy.deepcopy(net.state_dict())
    steps = trace(net)
    assert net.calls == 0 and not hasattr(net, "last") and all(layer.training for layer in net.modules())
    assert net.state_dict().keys() == state.keys()
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())
    assert [step.op for step in steps] == ["input", "conv", "output"]
    assert fingerprint(steps) == fingerprint(trace(net.eval()))
    nn.init.zeros_(net.body[0].weight)
    assert steps[1].attrs["weight"].abs().sum() > 0


def test_fingerprint_depends_on_net_and_weights_only() -> None:
    net = warm(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()), image())
    steps = trace(net)
    print_, shape_print = fingerprint(steps), fingerprint(steps, weights=False)
    backwards = [replace(step, attrs=dict(reversed(step.attrs.items()))) for step in steps]
    strided = [
        replace(step, attrs={key: v.to(memory_format=torch.channels_last) if key == "weight" else v for key, v in
                             step.attrs.items()})
        for step in steps
    ]  # fmt: skip
    assert fingerprint(backwards) == fingerprint(strided) == fingerprint(trace(copy.deepcopy(net))) == print_
    with torch.no_grad():
        net[0].weight[0, 0, 0, 0] += 1e-6
    assert fingerprint(trace(net)) != print_ and fingerprint(trace(net), weights=False) == shape_print
    assert fingerprint([replace(steps[0], name="y"), *steps[1:]], weights=False) != shape_print


def test_fingerprint_is_the_same_on_every_machine() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.LeakyReLU(0.1), nn.Flatten()).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.arange(6).reshape(2, 3) / 7)
        net[0].bias.copy_(torch.tensor([0.1, -0.3]))
        net[1].running_var.copy_(torch.tensor([0.7, 1.3]))
    assert fingerprint(trace(net)) == "b18205cb8db7a21ff3b6b46eac5a7e664dabd2f4bea11278273b0e16f6c20756"


def test_steps_print_as_a_plan() -> None:
    text = [str(step) for step in trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))]
    assert text == ["input = input()", "0 = linear(%0; weight=float32(2, 3), bias=float32(2,))", "1 = relu(%1)"] + [
        "output = output(%2)"
    ]


# torchvision --------------------------------------------------------------------------------------------------------

CNNS = (
    "alexnet vgg11 vgg11_bn resnet18 resnext50_32x4d wide_resnet50_2 squeezenet1_0 squeezenet1_1 densenet121 googlenet "
    "inception_v3 shufflenet_v2_x0_5 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet0_5 efficientnet_b0 "
    "efficientnet_v2_s regnet_y_400mf regnet_x_400mf"
).split()


QUICK = ("squeezenet1_1", "small densenet", "mobilenet_v3_small")  # no norms, norms first, norms behind convolutions


@pytest.mark.parametrize(
    ("name", "side"),
    [
        *((name, 32) for name in QUICK),
        *(pytest.param(name, 75 if name == "inception_v3" else 96, marks=pytest.mark.slow) for name in CNNS),
    ],
)
def test_torchvision_cnn_is_the_same_net(name: str, side: int) -> None:
    """A smaller image goes through the same layers."""
    torch.manual_seed(3)
    options = {"init_weights": False, "aux_logits": True} if name in ("googlenet", "inception_v3") else {}
    x = image(2, 3, side, side)
    if name == "small densenet":
        net = torchvision.models.DenseNet(8, (2, 1, 1, 1), 16, num_classes=10)
    else:
        net = getattr(torchvision.models, name)(weights=None, **options)
    if not any(isinstance(layer, nn.BatchNorm2d) for layer in net.modules()):
        same(net, x)
        return
    affine = [step for step in same(net, x, FOLDED) if step.op == "affine"]
    assert bool(affine) == ("densenet" in name)  # the one whose norms come before the convolutions

    # With norms that matter: an error grows through the net as the net's own float32 roundings do, 2^29 times smaller
    # in float64; four times that for the roundings of the folded weights themselves.
    warm(net, x)
    with torch.no_grad():
        rounded = net(x)
        net.double()
        expected = net(x.double())
        own = (rounded - expected).abs().max()
        assert expected.std(0).max() > 0  # the logits depend on the image
        assert (run(trace(net), x.double()) - expected).abs().max() <= 4 * own * 2**-29


def small_maxvit() -> nn.Module:
    """Two stages of one block each, windows of 4 x 4."""
    return torchvision.models.MaxVit((32, 32), 8, 4, [8, 16], [1, 1], head_dim=4, stochastic_depth_prob=0.0)


TRANSFORMERS = {
    "maxvit, two blocks": small_maxvit,
    **{name: getattr(torchvision.models, name) for name in ("convnext_tiny", "maxvit_t", "vit_b_16")},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "maxvit_t" else []) for name in TRANSFORMERS]
)
def test_torchvision_transformers_are_traced(name: str) -> None:
    with torch.device("meta"):
        net = TRANSFORMERS[name]()
    assert problems(net) == []
