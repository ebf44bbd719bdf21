"""Everything a net does beside its layers: wrappers, hooks, arguments, questions that Python asks, random numbers.

A net is converted as `net(x)` computes at inference, or it is refused with a problem that says what to do.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

import hummingbird
from hummingbird import graph, he
from hummingbird.errors import InputError, ModelError
from hummingbird.graph import problems, run, trace
from tests.graph.ops.test_vocabulary import Call, same
from tests.support.covering import every

torch.set_num_threads(1)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2)).eval()


def rows(*shape: int) -> Tensor:
    return torch.randn(shape or (3, 8), generator=torch.Generator().manual_seed(1))


# Wrappers ---------------------------------------------------------------------


@contextlib.contextmanager
def lone_process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def inner(wrap: Callable[[nn.Module], Any]) -> nn.Module:
    net = layers()
    net[2] = wrap(net[2])
    return net


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "DataParallel": lambda: nn.DataParallel(layers()),
    "both": lambda: nn.DataParallel(torch.compile(layers())),  # type: ignore[arg-type]
    "DistributedDataParallel": lambda: nn.parallel.DistributedDataParallel(layers()),
    "torch.compile": lambda: torch.compile(layers()),  # type: ignore[dict-item, return-value]
    "DataParallel inside": lambda: inner(nn.DataParallel),
    "torch.compile inside": lambda: inner(torch.compile),
}


@pytest.mark.parametrize("name", every(4, [*WRAPPED]))
def test_wrappers_are_taken_off(name: str) -> None:
    with lone_process_group():
        net, plain, x = WRAPPED[name](), layers(), rows()
        assert hummingbird.validate_model(net) == []
        assert [step.name for step in trace(net)] == [step.name for step in trace(plain)]
        assert torch.equal(run(trace(net), x), plain(x))
        # Windows found for the net itself fit the wrapped one.
        private = hummingbird.convert.build(net, hummingbird.BitConfig(layers={"2.1": hummingbird.BitWindow(20, 12)}))
        assert private.comparing_layers == ["1", "2.1"]
        assert torch.equal(hummingbird.simulate(net)(x), plain(x))
        close = (hummingbird.simulate(net, mode="exact")(x) - plain(x)).abs().max()
        assert close < 2e-3  # 20 weights and inputs per output, each rounded to 2^-17, of magnitude below 4
        assert he.convert_model(net, (8,)) is not None
        assert hummingbird.Study(net, x) is not None


def test_a_wrapped_net_trains_as_itself() -> None:
    net = nn.DataParallel(layers())
    twin = hummingbird.simulate(net)
    twin.train()(rows()).sum().backward()
    assert net.module[0].weight.grad is not None  # type: ignore[union-attr, operator]


def quantized(net: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)


def observed(net: nn.Module) -> nn.Module:
    net.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")  # type: ignore[assignment, attr-defined]
    return torch.ao.quantization.prepare(net)


FORMS: dict[str, tuple[Callable[[], Any], str]] = {
    "exported module": (lambda: torch.export.export(layers(), (rows(),)).module(), "made from"),
    "dynamically quantized": (lambda: quantized(layers()), "before quantization"),
    "prepared for quantization": (lambda: observed(layers()), "before quantization"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMS)
def test_programs_and_quantized_nets_are_refused_with_what_to_pass(name: str) -> None:
    make, words = FORMS[name]
    net = make()
    for refused in (hummingbird.convert_model, hummingbird.simulate, lambda net: he.convert_model(net, (8,))):
        with pytest.raises((ModelError, InputError), match=words):
            refused(net)


@pytest.mark.parametrize("net", [None, 3, "net", [nn.ReLU()], nn.ReLU, torch.ones(3)])
def test_what_is_no_net_is_refused_everywhere(net: Any) -> None:
    functions: list[Callable[[Any], Any]] = [
        hummingbird.validate_model,
        hummingbird.convert_model,
        hummingbird.simulate,
        lambda net: hummingbird.Study(net, rows()),
        lambda net: he.convert_model(net, (8,)),
        graph.unwrapped,
    ]
    for function in functions:
        with pytest.raises(InputError, match="expected a torch.nn.Module"):
            function(net)


# Around forward() --------------------------------------------------------------


def test_hooks_on_the_net_itself_are_refused() -> None:
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        for net in (layers(), nn.Linear(8, 4)):
            getattr(net, register)(lambda *args: None)
            assert "hook" in problems(net)[0].what and "remove" in problems(net)[0].hint


def test_hooks_of_containers_are_traced() -> None:
    net = nn.Sequential(layers())
    net[0].register_forward_hook(lambda module, x, y: y * 2)
    net[0].register_forward_pre_hook(lambda module, x: (x[0] + 1,))
    same(net, rows())


def test_hooks_on_all_modules_are_refused() -> None:
    handle = all_modules.register_module_forward_hook(lambda module, x, y: None)
    try:
        assert "register_module_forward_hook" in problems(layers())[0].what
    finally:
        handle.remove()
    assert problems(layers()) == []


def test_hooks_on_a_custom_layer_are_refused() -> None:
    net = nn.Sequential(Call(torch.exp))
    net[0].register_forward_hook(lambda module, x, y: y * 2)
    assert "hook" in problems(net, custom=(Call,))[0].what


def test_a_replaced_forward_is_traced_or_refused() -> None:
    whole, leaf, container = layers(), layers(), nn.Sequential(layers())
    whole.forward = leaf[0].forward = container[0].forward = lambda x: x * 2  # type: ignore[method-assign]
    assert [(problem.name, "replaced" in problem.what) for problem in problems(whole)] == [("net", True)]
    assert [(problem.name, "replaced" in problem.what) for problem in problems(leaf)] == [("0", True)]
    same(container, rows())


def test_a_layer_called_drop_path_must_do_nothing_to_be_left_out() -> None:
    class DropPath(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 3

    class StochasticDepth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.block(x)

    same(nn.Sequential(DropPath(), StochasticDepth()), rows())


# Arguments ----------------------------------------------------------------------


class OfTransformers(nn.Module):
    """As in Hugging Face's nets: every argument has the default None."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(8, 3)

    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, return_dict: bool | None = None
    ) -> Tensor:
        if pixel_values is None:
            raise ValueError("You have to specify pixel_values")
        return self.classifier(pixel_values) if labels is None else self.classifier(labels)


class Starred(OfTransformers):
    def forward(self, *args: Tensor, **kwargs: float) -> Tensor:  # type: ignore[override]
        return self.classifier(args[0]) * kwargs.get("gain", 2.0) * len(args)


class Mixed(OfTransformers):
    def forward(self, x: Tensor, *args: Tensor, gain: float = 3.0, **kwargs: float) -> Tensor:  # type: ignore[override]
        return self.classifier(x) * gain + len(args) + len(kwargs)


class KeywordsFirst(OfTransformers):
    def forward(self, *args: Tensor, gain: float = 3.0) -> Tensor:  # type: ignore[override]
        return self.classifier(*args) * gain


@pytest.mark.parametrize("net", [OfTransformers(), Starred(), Mixed(), KeywordsFirst()])
def test_forward_has_one_input_and_defaults(net: nn.Module) -> None:
    x = rows()
    same(net, x)
    assert torch.equal(hummingbird.simulate(net)(x), net(x))


# Questions that Python asks ------------------------------------------------------

KNOWN: list[Callable[[Tensor], Tensor]] = [
    lambda x: x if isinstance(x, Tensor) else -x,
    lambda x: x if isinstance(F.relu(x), (Tensor, list)) else -x,
    lambda x: -x if isinstance(x, (list, tuple)) else x,
    lambda x: -x if isinstance(x, nn.Parameter) else x,
    lambda x: x if torch.is_tensor(x * 2) else -x,
    lambda x: -x if hasattr(x, "tensors") else x,
    lambda x: x if hasattr(x, "shape") else -x,
    lambda x: -x if x is None else x,
    lambda x: x if isinstance(x.chunk(2, 1)[0], Tensor) else -x,
]


@pytest.mark.parametrize("function", KNOWN)
def test_questions_about_the_type_are_answered_as_at_inference(function: Callable[[Tensor], Tensor]) -> None:
    same(Call(function), rows())


def caught(x: Tensor) -> Tensor:
    try:
        return x * float(x.sum())
    except Exception:
        return x


def unpacked(x: Tensor) -> Tensor:
    rows, columns = x.shape
    return torch.reshape(x, (rows, 2, columns // 2)).transpose(1, 2).reshape(rows, columns)


@pytest.mark.parametrize(
    "function",
    [
        unpacked,
        lambda x: torch.reshape(x, (x.shape[0], -1)),
        lambda x: torch.reshape(x, [x.size(0), x.size(1) // 2, 2]),
        lambda x: x.view((x.size(0), -1)),
    ],
)
def test_sizes_in_the_arguments_of_functions(function: Callable[[Tensor], Tensor]) -> None:
    """torch's own parser of arguments asks them for numbers, and does without."""
    same(Call(function), rows())


UNKNOWN: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "shape": (lambda x: x if x.shape[1] == 8 else -x, "subclass the module"),
    "rank": (lambda x: x if x.dim() == 2 else -x, "subclass the module"),
    "device": (lambda x: x if x.is_cuda else -x, "subclass the module"),
    "type of a size": (lambda x: x if isinstance(x.shape[0], int) else -x, "subclass the module"),
    "type of a shape": (lambda x: x if isinstance(x.shape, tuple) else -x, "subclass the module"),
    "value": (lambda x: x if x.sum() > 0 else -x, "straight-line"),
    "float": (lambda x: x * float(x.sum()), "keep it a tensor"),
    "caught": (caught, "keep it a tensor"),
    "int": (lambda x: x[: int(x.shape[0])], "sizes as numbers"),
    "range": (lambda x: sum(x[:, i] for i in range(x.shape[1])), "sizes as numbers"),
    "len": (lambda x: x.reshape(len(x), -1), "x.shape[0]"),
    "item": (lambda x: x * x.sum().item(), "Python number"),
    "star": (lambda x: x.reshape(*x.shape[:1], -1), "one by one"),
    "NumPy": (lambda x: x * np.float32(2.0), "torch's tensors"),
    "rows": (lambda x: sum(row for row in x), "one by one"),
    "write": (lambda x: x.__setitem__(0, 1), "torch.cat"),
    "new layer": (lambda x: nn.Linear(8, 2)(x), "make the layer in __init__"),
    "noise": (lambda x: x + torch.randn(8), "draw"),
    "noise in place": (lambda x: x + torch.empty(8).uniform_(), "draw"),
    "noise like": (lambda x: x + torch.rand_like(x), "draw"),
    "sizes as numbers": (lambda x: x / x.numel(), "mean"),
    "type": (lambda x: x.to(torch.float32), "one type"),
    "fill": (lambda x: x + torch.zeros_like(x), "__init__"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_questions_without_an_answer_are_problems_with_a_hint(name: str) -> None:
    function, hint = UNKNOWN[name]
    found = problems(Call(function))
    assert any(hint in problem.hint for problem in found), found
    assert "Proxy" not in str(found) and "Symbol" not in str(found)


def test_random_numbers_of_a_parameter_are_seen_and_the_generator_is_not_blamed_for_nothing() -> None:
    net = Call(lambda x, part: x @ F.dropout(part.weight, 0.5, True).t(), nn.Linear(8, 8))
    assert "random" in problems(net)[0].what
    quiet, before = layers(), torch.get_rng_state()
    assert problems(quiet) == []
    assert torch.equal(torch.get_rng_state(), before)


# Constants -----------------------------------------------------------------------


class Shifted(nn.Module):
    def __init__(self, buffer: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("buffer", buffer)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.get_buffer("buffer"))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integer_buffers_are_what_torch_makes_of_them(dtype: torch.dtype) -> None:
    buffer = torch.tensor([0, 1, 0, 1, 1, 1, 0, 1]).to(dtype)
    known = [lambda x, y: x + y, lambda x, y: x * y[1], lambda x, y: x / y[1]]
    # torch subtracts no bool tensors
    for function in known + [lambda x, y: y - x] * (dtype != torch.bool):
        same(Shifted(buffer, function), rows())
    close = (hummingbird.simulate(Shifted(buffer, torch.add), mode="exact")(rows()) - (rows() + buffer)).abs().max()
    assert close < 2**-14


def test_constants_that_forward_makes_are_there_in_the_fast_twin() -> None:
    net = Call(lambda x: F.relu(x + torch.arange(8.0)) / torch.tensor(2.0))
    assert torch.equal(hummingbird.simulate(net)(rows()), net(rows()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "quantized"])
def test_weights_that_are_no_plain_tensors_are_refused(kind: str) -> None:
    eye = torch.eye(8)
    weight = eye.to_sparse() if kind == "sparse" else torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8)
    found = problems(Shifted(weight, lambda x, w: F.linear(x, w)))
    assert found and "plain tensor" in found[0].what


# Corners of the rules -------------------------------------------------------------

CORNERS: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "keepdim over everything": (Call(lambda x: torch.mean(x, dim=None, keepdim=True)), (3, 8), "name the dimensions"),
    "keepdim over ()": (Call(lambda x: x.sum((), keepdim=True)), (3, 8), "name the dimensions"),
    "slope": (nn.LeakyReLU(float("nan")), (3, 8), "finite number"),
    "slope from data": (Call(lambda x: F.leaky_relu(x, x.mean())), (3, 8), "finite number"),
    "gelu": (Call(lambda x: F.gelu(x, approximate="fast")), (3, 8), "tanh"),
    "bounds": (Call(lambda x: x.clamp(1, -1)), (3, 8), "exchange"),
    "infinite bound": (Call(lambda x: x.clamp(0, float("inf"))), (3, 8), "finite number"),
    "infinite padding": (Call(lambda x: F.pad(x, (1, 1), value=float("-inf"))), (3, 8), "finite number"),
    "a factor with dimensions": (Shifted(torch.full((1, 1, 1), 2.0), lambda x, y: x * y), (3, 8), "as a number"),
    "softmax of a number": (Call(lambda x: x.sum().softmax(0)), (3, 8), "keep the dimension"),
    "one image, conv": (nn.Conv2d(4, 3, 3), (4, 8, 8), "unsqueeze"),
    "one image, transposed": (nn.ConvTranspose2d(4, 3, 3), (4, 8, 8), "unsqueeze"),
    "one row, pool": (nn.AvgPool1d(2), (4, 8), "unsqueeze"),
    "one image, adaptive": (nn.AdaptiveAvgPool2d(1), (4, 8, 8), "unsqueeze"),
    "a lone number": (nn.ReLU(), (), "batch"),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners_are_refused_before_anything_runs(name: str) -> None:
    net, shape, hint = CORNERS[name]
    with pytest.raises((ModelError, InputError), match=hint):
        hummingbird.simulate(net, mode="exact")(rows(*shape) if shape else torch.tensor(1.0))


def test_a_factor_of_one_element_keeps_the_rank_where_torch_does() -> None:
    for shape in ((), (1,), (1, 1)):
        same(Shifted(torch.full(shape, 2.0), lambda x, y: x * y), rows())


def test_the_callers_wrapped_net_is_left_as_it_is() -> None:
    net = inner(nn.DataParallel)
    before = copy.deepcopy(net)
    trace(net)
    assert isinstance(net[2], nn.DataParallel) and repr(net) == repr(before)


# Writes ---------------------------------------------------------------------------------------------------------------


def written(write: Callable[[Tensor], Any]) -> nn.Module:
    """A net that writes into a value, and returns the value."""

    def function(x: Tensor) -> Tensor:
        y = x * 1
        write(y)
        return y * 1.0

    return Call(function).eval()


def set_data(y: Tensor) -> None:
    y.data = y * 2


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "a result for another call": lambda y: torch.maximum(y, y * 2, out=y),
    "a function that is not known": lambda y: y.floor_(),
    "a function that is not known, by its place": lambda y: torch.round(y, out=y),
    "a comparison": lambda y: y.gt_(0),
    "data": set_data,
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_whose_result_nobody_reads_are_not_dropped(name: str) -> None:
    x = torch.randn(3, 8)
    assert not torch.equal(written(WRITES[name])(x), x)
    for example in (None, x):
        (problem, *_) = hummingbird.validate_model(written(WRITES[name]), example)
        assert problem.hint
