"""Arguments of every kind for the public functions: right results, or errors of the project's that say what to do."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import pir
from hummingbird.errors import ConfigError, InputError, ModelError, TrustError
from hummingbird.mpc.plan import builders
from hummingbird.mpc.session import session as sessions
from scripts import recommend
from tests.support.parties import succeed

torch.set_num_threads(1)
UNIT = 2.0**-16


def dense() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def rows() -> Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


def close(out: Tensor, net: nn.Module, x: Tensor) -> bool:
    """Roundings of 12 weights and inputs by half a unit each, of magnitudes below 4, twice."""
    return bool((out - net(x)).abs().max() < 2 * 12 * 4 * UNIT)


# init ----------------------------------------------------------------------------


def test_a_lone_party_is_told_once_that_nothing_is_hidden(
    monkeypatch: pytest.MonkeyPatch, nothing_is_left: None
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            hummingbird.init()
            hummingbird.uninit()
    (warning,) = caught
    assert "nothing is hidden" in str(warning.message) and "hummingbird run --parties 2" in str(warning.message)
    assert warning.filename == __file__  # the caller's line, not ours


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dealer": "127.0.0.1:9000"}, "the only party.*hummingbird run"),
        ({"dealer": 9000}, "host:port"),
        ({"tls": "party-0.pem"}, "Tls"),
        ({"timeout": -1}, "positive number"),
        ({"timeout": float("nan")}, "positive number"),
        ({"timeout": "10"}, "positive number"),
        ({"device": "tpu"}, '"cpu" or "cuda"'),
        ({"device": None}, '"cpu" or "cuda"'),
    ],
)
def test_options_of_init_are_checked_first(
    monkeypatch: pytest.MonkeyPatch, nothing_is_left: None, options: dict[str, Any], words: str
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        hummingbird.init(**options)
    assert not sessions.is_initialized()


# Tensors -------------------------------------------------------------------------

TENSORS: dict[str, tuple[Callable[[], Any], str]] = {
    "None": (lambda: None, "must give a tensor"),
    "list": (lambda: [1.0], "must give a tensor"),
    "int64": (lambda: torch.ones(3, 8, dtype=torch.int64), "floating-point"),
    "bool": (lambda: torch.ones(3, 8, dtype=torch.bool), "floating-point"),
    "complex": (lambda: torch.ones(3, 8, dtype=torch.complex64), "floating-point"),
    "float8": (lambda: torch.ones(3, 8).to(torch.float8_e4m3fn), "floating-point"),
    "NaN": (lambda: torch.full((3, 8), float("nan")), "NaN or infinity"),
    "infinite": (lambda: torch.full((3, 8), float("inf")), "NaN or infinity"),
    "large": (lambda: torch.full((3, 8), 2.0**30), "fixed-point range"),
    "sparse": (lambda: torch.ones(3, 8).to_sparse(), "dense"),
    "compressed": (lambda: torch.ones(3, 8).to_sparse_csr(), "dense"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3, 8), 0.1, 0, torch.qint8), "dense"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(8), torch.ones(7)]), "dense"),
    "meta": (lambda: torch.ones(3, 8, device="meta"), "meta device"),
    "nine dimensions": (lambda: torch.ones(*[1] * 9), "at most 8"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_cannot_be_shared_are_refused(alone: sessions.Session, name: str) -> None:
    make, words = TENSORS[name]
    with pytest.raises(InputError, match=words):
        hummingbird.cryptensor(make())
    if name not in ("None", "list", "nine dimensions"):
        with pytest.raises(InputError, match=words):
            hummingbird.simulate(dense(), mode="exact")(make())


@pytest.mark.parametrize("x", [None, [1.0], 3])
def test_the_exact_twin_takes_tensors(x: Any) -> None:
    with pytest.raises(InputError, match="expected a tensor"):
        hummingbird.simulate(dense(), mode="exact")(x)


def test_tensors_of_all_other_kinds_are_right(alone: sessions.Session) -> None:
    net, x = dense(), rows()
    private = hummingbird.convert_model(net)
    kinds = [x.half(), x.bfloat16(), x.double(), x.t().contiguous().t(), x[:1].expand(3, 8), x.requires_grad_()]
    for kind in kinds:
        with torch.no_grad():
            assert close(private(hummingbird.cryptensor(kind)).get_plain_text(), net, kind.float())


@pytest.mark.parametrize("src", [-1, 1, 7, "0", None, 0.0, True])
def test_a_source_that_is_no_party(alone: sessions.Session, src: Any) -> None:
    with pytest.raises(InputError, match="names no party of 1"):
        hummingbird.cryptensor(rows(), src=src)


@pytest.mark.parametrize("dst", [7, -1, "0", 0.5, True])
def test_a_receiver_that_is_no_party(alone: sessions.Session, dst: Any) -> None:
    with pytest.raises(InputError, match="names no party of 1"):
        hummingbird.cryptensor(rows()).get_plain_text(dst=dst)


# Ranges --------------------------------------------------------------------------


def test_values_beyond_the_limit_are_refused_by_their_owner(alone: sessions.Session) -> None:
    x = torch.tensor([[0.5, -4.0]])
    assert torch.equal(hummingbird.cryptensor(x, limit=4.0).get_plain_text(), x)
    for limit in (3.999, 1):
        with pytest.raises(InputError, match=rf"within \+-{limit:g}, got a larger one.*cryptensor") as caught:
            hummingbird.cryptensor(x, limit=limit)
        assert "4.0" not in str(caught.value)  # told to the other parties: not how large
    for limit in (0, -1.0, float("nan"), float("inf"), "4", True):
        with pytest.raises(InputError, match="a positive number"):
            hummingbird.cryptensor(x, limit=limit)  # type: ignore[arg-type]


def test_a_private_net_knows_the_range_that_its_windows_were_found_for() -> None:
    private = hummingbird.convert.build(dense(), hummingbird.BitConfig(hummingbird.BitWindow(20, 0), input_range=2.5))
    assert private.input_range == 2.5 and "inputs within +-2.5" in repr(private)
    unknown = hummingbird.convert.build(dense())
    assert unknown.input_range is None and "inputs within" not in repr(unknown)


# Runs ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), ()])
def test_an_empty_batch_is_refused(alone: sessions.Session, shape: tuple[int, ...]) -> None:
    private = hummingbird.convert_model(dense())
    with pytest.raises(InputError, match="no batch of images.*input"):
        private(hummingbird.cryptensor(torch.ones(shape)))
    with pytest.raises(InputError, match="no batch of images"):
        private.costs(shape, 2)


def test_progress_and_slices_are_checked_before_anything_runs(alone: sessions.Session) -> None:
    private, x = hummingbird.convert_model(dense()), hummingbird.cryptensor(rows())
    with pytest.raises(InputError, match="progress=3"):
        private(x, progress=3)  # type: ignore[arg-type]
    for images in (0, -1, 1.5, "2"):
        private.images_per_slice = images  # type: ignore[assignment]
        with pytest.raises(InputError, match="images_per_slice"):
            private(x)


def test_a_prepared_net_is_copied_within_its_session_and_never_pickled(alone: sessions.Session) -> None:
    net, x = dense(), rows()
    private = hummingbird.convert_model(net)
    twin = copy.deepcopy(private)
    assert twin is not private and twin.comparing_layers == private.comparing_layers
    for save in (pickle.dumps, copy.copy, lambda value: torch.save(value, io.BytesIO())):
        with pytest.raises(InputError, match="(?s)not pickled.*convert that one again"):
            save(private)
    with torch.no_grad():
        assert close(twin(hummingbird.cryptensor(x)).get_plain_text(), net, x)


def test_between_two_parties() -> None:
    """Receivers, limits, copies of prepared nets, custom layers beside private weights: tests/jobs/callers.py."""
    succeed(["-m", "tests.jobs.callers"], 2)


# Layers of one's own ---------------------------------------------------------------


class Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((8,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


@pytest.mark.parametrize(
    ("kind", "build", "words"),
    [
        (Own(), lambda module: module, "an instance of Own.*register_converter\\(Own"),
        ("Own", lambda module: module, "subclass of torch.nn.Module, got 'Own'"),
        (None, lambda module: module, "subclass of torch.nn.Module"),
        (int, lambda module: module, "subclass of torch.nn.Module"),
        (Own, None, "expected a function"),
        (Own, 3, "expected a function"),
    ],
)
def test_register_converter_takes_a_type_and_a_function(
    nothing_is_left: None, kind: Any, build: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        hummingbird.register_converter(kind, build)
    assert builders.CUSTOM == {}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda module: None, "returned NoneType"),
        (lambda module: "module", "returned str"),
        (lambda module: 1 / 0, "raised ZeroDivisionError"),
        (lambda: Own(), "raised TypeError"),
    ],
)
def test_a_converter_that_gives_no_module_is_a_problem_of_the_layer(
    nothing_is_left: None, build: Any, words: str
) -> None:
    hummingbird.register_converter(Own, build)
    net = nn.Sequential(nn.Linear(8, 8), Own())
    (problem,) = hummingbird.validate_model(net)
    assert problem.name == "1" and words in problem.what and "Own" in problem.what
    with pytest.raises(ModelError, match=words):
        hummingbird.convert_model(net)


class Wrong(nn.Module):
    def __init__(self, out: Callable[[Any], Any]) -> None:
        super().__init__()
        self.out = out

    def forward(self, x: Any) -> Any:
        return self.out(x)


@pytest.mark.parametrize(
    ("out", "words"),
    [(lambda x: x.get_plain_text(), "returned Tensor"), (lambda x: None, "returned NoneType")],
)
def test_what_a_private_form_returns_is_checked(alone: sessions.Session, out: Any, words: str) -> None:
    before = dict(builders.CUSTOM)
    try:
        hummingbird.register_converter(Own, lambda module: Wrong(out))
        private = hummingbird.convert_model(nn.Sequential(Own(), nn.Linear(8, 2)))
        with pytest.raises(InputError, match=f"{words}.*expected a CrypTen tensor"):
            private(hummingbird.cryptensor(rows()))
    finally:
        builders.CUSTOM.clear()
        builders.CUSTOM.update(before)


def test_weights_of_a_custom_layer_cannot_be_private(nothing_is_left: None) -> None:
    hummingbird.register_converter(Gain, lambda module: module)
    hummingbird.register_converter(Own, lambda module: module)
    net = nn.Sequential(nn.Sequential(Gain(), Own()), nn.Linear(8, 2)).eval()
    with pytest.raises(ModelError, match="the weights of a custom layer cannot be private") as caught:
        hummingbird.convert_model(net, weights=0)
    assert [problem.name for problem in caught.value.problems] == ["0.0"]  # and not of the layer that has none
    hummingbird.convert_model(net)


# Nets without values -----------------------------------------------------------------


def test_nets_on_the_meta_device_are_refused_by_layer() -> None:
    net = dense().to("meta")
    assert [(problem.name, "meta device" in problem.what) for problem in hummingbird.validate_model(net)] == [
        ("0", True),
        ("2", True),
    ]
    for function in (hummingbird.convert_model, hummingbird.simulate):
        with pytest.raises(ModelError, match="meta device"):
            function(net)


def test_numbers_beyond_fixed_point_in_comparing_layers_have_a_name() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.PReLU(8, init=2.0**31)).eval()
    assert [problem.name for problem in hummingbird.validate_model(net)] == ["1"]


# Lookups -----------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [[1], None, 3, [], "ab", [1, 2], ["one:1"], {"a": 1, "b": 2}])
def test_lookups_need_two_servers(servers: Any) -> None:
    for kind in (pir.PrivateEmbedding, pir.PrivateEmbeddingBag, pir.Client):
        with pytest.raises((ConfigError, TrustError), match="expected two servers"):
            kind(servers)


def test_what_is_no_index_is_refused_without_naming_it() -> None:
    table = nn.Embedding(10, 4)
    private = pir.PrivateEmbedding.from_torch(table, pir.local_servers(table))
    for indices in ([7], None, torch.tensor([7]).to_sparse(), torch.ones(1, dtype=torch.int64, device="meta")):
        with pytest.raises(InputError, match="dense tensor of indices") as caught:
            private(indices)
        assert "7" not in str(caught.value)
    with pytest.raises(InputError, match="dense tensor"):
        pir.local_servers(torch.ones(3, 4).to_sparse())


def test_a_user_without_a_service_is_told_what_to_start(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    servers = [f"unix:{tmp_path}/0", f"unix:{tmp_path}/1"]
    assert recommend.main(["--synthetic", "--parties", *servers, "--timeout", "1"]) == 1
    told = capsys.readouterr().err
    assert "nothing answers" in told and "start both parties first: python -m hummingbird run --parties 2 -- " in told
    assert "--model scripts.recommend:synthetic" in told
