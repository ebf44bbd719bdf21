"""Functions of CrypTen that start sessions, read files or choose seeds: a safe version, or a refusal with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hummingbird.crypten import tensors
from hummingbird.crypten.adapter import SHIMMED, MPCTensor, PartyCommunicator, communicator, crypten
from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError, TrustError
from hummingbird.mpc.session import session as sessions

_make = crypten.cryptensor

_REFUSED: dict[tuple[Any, str], HummingbirdError] = {
    (crypten, "init_thread"): EnvironmentProblem(
        "CrypTen is started by hummingbird.init(), not by crypten.init_thread()",
        hint="a process for each party: python -m hummingbird run --parties 2 -- SCRIPT.py",
    ),
    (crypten, "manual_seed"): TrustError(
        "seeds that are chosen make shares and masks predictable",
        where="crypten.manual_seed",
        hint="leave them to init()",
    ),
    (crypten, "save"): EnvironmentProblem(
        "CrypTen writes shares by pickle",
        where="crypten.save",
        hint="x.get_plain_text(dst=RANK) and torch.save it there; or torch.save(x.share), and MPCTensor.from_shares",
    ),
    (crypten, "load"): EnvironmentProblem(
        "CrypTen reads shares by pickle, which runs what a file says",
        where="crypten.load",
        hint="hummingbird.cryptensor(x, src=RANK) shares a tensor; MPCTensor.from_shares takes saved shares",
    ),
}
_NO_READER = EnvironmentProblem(
    "CrypTen's reader of nets needs a module that this torch lacks",
    where="crypten.nn",
    hint="hummingbird.convert_model(net) takes a torch module; crypten.nn has modules to build a net from",
)


def refuse_foreign_session() -> None:
    """Raise EnvironmentProblem if CrypTen already runs a session that this package did not start."""
    if crypten.is_initialized() or getattr(communicator, "__use_threads"):
        raise EnvironmentProblem(
            "CrypTen runs already, with its own communicator and provider",
            where="init",
            hint="call crypten.uninit() first, or leave crypten.init() out: hummingbird.init() starts it",
        )


def _refusal(error: HummingbirdError) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise type(error)(error.what, where=error.where, hint=error.hint)

    return refuse


def _communicator() -> PartyCommunicator:
    instance = PartyCommunicator.get()
    if instance is None:
        raise EnvironmentProblem("no session", where="crypten", hint="call hummingbird.init() first")
    return instance


def _show(self: Any) -> str:
    return f"MPCTensor(shape={tuple(self.size())}, scale={self.encoder.scale}, {self.ptype.name})"


def install() -> None:
    """Replace the functions of CrypTen that this package refuses by functions that raise an error or check more.

    The replacement is for this process, and stays.
    """

    def cryptensor(*args: Any, **kwargs: Any) -> Any:
        """Call CrypTen's function of this name; then the parties compare the tensor's shape and source, in one round.

        Tensors of a type that the caller registered (`crypten.register_cryptensor`) are not compared.
        """
        made = _make(*args, **kwargs)
        if not isinstance(made, MPCTensor):
            return made
        facts = {"shape": str(tuple(made.size())), "src": str(kwargs.get("src", 0))}
        sessions.current().agree("crypten.cryptensor", facts)
        return made

    def load_from_party(
        f: Any = None,
        preloaded: Any = None,
        encrypted: bool = False,
        model_class: Any = None,
        src: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Share a tensor that party `src` has in memory."""
        if encrypted or model_class is not None or f is not None:
            raise EnvironmentProblem(
                "load_from_party takes preloaded=, a tensor: CrypTen reads files by pickle",
                where="crypten.load_from_party",
                hint="read the file with weights_only=True; hummingbird.convert_model(net, weights=RANK) shares a net",
            )
        if communicator.get().get_rank() != src:
            return tensors.cryptensor(None, src)
        if not isinstance(preloaded, Tensor):
            raise InputError(
                f"load_from_party takes a tensor, not {type(preloaded).__name__}",
                where="crypten.load_from_party",
                hint="hummingbird.convert_model(net, weights=RANK) shares a net's weights",
            )
        return tensors.cryptensor(preloaded, src)

    crypten.cryptensor, crypten.load_from_party, communicator.get = cryptensor, load_from_party, _communicator
    MPCTensor.__repr__ = _show
    for (module, name), error in _REFUSED.items():
        setattr(module, name, _refusal(error))
    if SHIMMED:
        for name in ("from_pytorch", "from_onnx", "from_tensorflow"):
            setattr(crypten.nn, name, _refusal(_NO_READER))
