"""CrypTen's part of a session: it starts and ends with our session, and uses its channel and its randomness.

The dealer is CrypTen's provider of triples, squares, bits and wraps. Functions of CrypTen that start sessions, read
files or choose seeds are replaced: by a safe version, or by a refusal with a reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from hummingbird.crypten import adapter, fixed_point, functions, tensors
from hummingbird.crypten.adapter import (
    SHIMMED,
    ArithmeticSharedTensor,
    BinarySharedTensor,
    MPCTensor,
    PartyCommunicator,
    TupleProvider,
    communicator,
    crypten,
)
from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError, TrustError
from hummingbird.mpc.correlations.provider import SharedBit, WordTriple, Wraps
from hummingbird.mpc.protocols.beaver import SquarePair, Triple
from hummingbird.mpc.session import session as sessions
from hummingbird.mpc.session.session import Session, ZeroSharing
from hummingbird.prg import SEED_BYTES

# The dealer as CrypTen's provider -------------------------------------------------------------------------------------


class DealerProvider(TupleProvider):
    """The object that CrypTen asks for correlated randomness (its "provider"); each method gets it from the session.

    The current session requests it from its dealer or takes it from its store. CrypTen calls the methods.
    """

    NAME = "dealer"

    def _no_cache(self, *args: Any, **kwargs: Any) -> Any:
        raise EnvironmentProblem(
            "CrypTen's cache of randomness is not available",
            where="crypten.provider",
            hint="`python -m hummingbird deal` deals in advance, hummingbird.init(store=...) uses it",
        )

    trace = trace_once = fill_cache = save_cache = load_cache = _no_cache

    def generate_additive_triple(
        self, size0: Any, size1: Any, op: str, device: Any = None, *args: Any, **kwargs: Any
    ) -> list[ArithmeticSharedTensor]:
        """Get this party's shares of uniform ring elements a and b, and of c = op(a, b, **kwargs), mod 2^64, as a list.

        size0, size1: shapes of a and b. op: name of the product, such as "mul", "matmul" or "conv2d", with torch's
        options `kwargs`. device: of the result.
        """
        options = {name: _plain(value) for name, value in kwargs.items()}
        return _ring(sessions.current().correlation(Triple(tuple(size0), tuple(size1), op, options)), device)

    def square(self, size: Any, device: Any = None) -> list[ArithmeticSharedTensor]:
        """Get this party's shares of uniform ring elements r, and of r^2, as a list of two tensors of shape `size`.

        device: of the result.
        """
        return _ring(sessions.current().correlation(SquarePair(tuple(size))), device)

    def generate_binary_triple(self, size0: Any, size1: Any, device: Any = None) -> list[BinarySharedTensor]:
        """Get this party's xor shares of uniform 64-bit words a and b, and of a & b; return the three in a list.

        size0, size1: shapes of a and b. device: of the result.
        """
        shares = sessions.current().correlation(WordTriple(tuple(size0), tuple(size1)))
        return [_binary(share, device) for share in shares]

    def wrap_rng(self, size: Any, device: Any = None) -> list[ArithmeticSharedTensor]:
        """Get this party's shares of uniform ring elements r, and of how often the sum of r's shares passes 2^64.

        Returns a list of two tensors of shape `size`. device: of the result.
        """
        return _ring(sessions.current().correlation(Wraps(tuple(size))), device)

    def B2A_rng(self, size: Any, device: Any = None) -> tuple[ArithmeticSharedTensor, BinarySharedTensor]:
        """Get this party's shares of random bits, in two tensors of shape `size`: additive shares, and xor shares.

        Both are shares of equal bits. CrypTen needs them to turn xor shares ("binary") into additive ones. device: of
        the result.
        """
        bit = sessions.current().correlation(SharedBit(tuple(size)))
        return _arithmetic(bit.arithmetic, device), _binary(bit.binary, device)


def _arithmetic(share: Tensor, device: Any) -> ArithmeticSharedTensor:
    return ArithmeticSharedTensor.from_shares(share, precision=0, device=device)


def _binary(share: Tensor, device: Any) -> BinarySharedTensor:
    return BinarySharedTensor.from_shares(share, precision=0, device=device)


def _ring(shares: Sequence[Tensor], device: Any) -> list[ArithmeticSharedTensor]:
    return [_arithmetic(share, device) for share in shares]


def _plain(value: Any) -> Any:
    """Return an option of torch's convolutions, such as a stride, as an int or a list of ints, for a request.

    value: an integer or a sequence of integers.
    """
    return [int(v) for v in value] if isinstance(value, (tuple, list)) else int(value)


# Refused functions ----------------------------------------------------------------------------------------------------

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


def _refuse() -> None:
    """Replace functions of CrypTen that are unsafe or impossible here by functions that raise an error, or check more.

    They replace CrypTen's own for as long as this process runs.
    """

    def cryptensor(*args: Any, **kwargs: Any) -> Any:
        """Call CrypTen's `cryptensor` and return its result; the parties compare its shape and `src`, in one round.

        Raises AgreementError if the parties differ. Tensors of a type that the caller registered
        (`crypten.register_cryptensor`) are not compared.
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
        """Share a tensor that party `src` has in memory, `preloaded`; return the CrypTen tensor, at every party.

        It replaces CrypTen's function of this name. Raises EnvironmentProblem if another argument asks to read a file,
        and InputError if `preloaded` is no tensor at party `src`.
        """
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


# Start and end --------------------------------------------------------------------------------------------------------


def refuse_other() -> None:
    """Raise an error if CrypTen cannot be used with a session of this package.

    That is EnvironmentProblem if CrypTen already runs a session that this package did not start, and TrustError if its
    validation mode is on, which would open every value.
    """
    _refuse_foreign_session()
    adapter.refuse_validation()


def _refuse_foreign_session() -> None:
    """Raise EnvironmentProblem if CrypTen already runs a session that this package did not start."""
    if crypten.is_initialized() or getattr(communicator, "__use_threads"):
        raise EnvironmentProblem(
            "CrypTen runs already, with its own communicator and provider",
            where="init",
            hint="call crypten.uninit() first, or leave crypten.init() out: hummingbird.init() starts it",
        )


def start(session: Session, local: bytes) -> None:
    """Make CrypTen's functions run in this session: over its channel, with its randomness and its dealer.

    local: the seed of this party's own random numbers.
    """
    assert session.zeros is not None, "CrypTen's functions share secrets"
    _repair()
    adapter.install(session.channel, session.zeros, local, session.device)


@contextlib.contextmanager
def lent(session: Session) -> Iterator[None]:
    """Return a context in which CrypTen's functions run in `session`, as after `start`, but with seeds that are zero.

    It is for a session without secrets, such as one that only records which requests a net makes. At its end CrypTen
    has its former communicator and streams again.
    """
    _repair()
    with adapter.lent(session.channel, session.zeros or ZeroSharing.of_zeros(), bytes(SEED_BYTES)):
        yield


def stop() -> None:
    """End CrypTen's use of the current session, when the session ends.

    The functions of CrypTen that were replaced stay replaced.
    """
    adapter.uninstall()


def _repair() -> None:
    """Replace the functions of CrypTen that are wrong or unsafe, and its source of correlated randomness.

    The replacement is for this process, and stays.
    """
    fixed_point.install()
    functions.install()
    provider = DealerProvider()
    crypten.mpc.get_default_provider = lambda: provider
    _refuse()
