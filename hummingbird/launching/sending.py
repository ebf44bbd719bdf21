"""Messages of `launch`: a function to the processes that run it, and each party's result back to the caller.

Functions and nets of a notebook's cells belong to no module that another process could import, so cloudpickle sends
their code. A process that loads a pickle runs its writer's code, so nothing else in this package uses pickle. Here
running code is the purpose: the writer is the process that has started the reader, under the same user, over a pipe
that no other process holds.

Results are data: tensors, plain values, meters and reports only. `torch.save` writes them, and
`torch.load(weights_only=True)` reads them without running any code in them.
"""

from __future__ import annotations

import io
import os
import sys
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from hummingbird.channel.meter import Meter, MeterRow
from hummingbird.errors import InputError, needs
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.table import Report

# Results -------------------------------------------------------------------------------------------------------------

_PLAIN = (bool, int, float, str, bytes, type(None))
_SHOWN = (Meter, Report)  # data as well, with methods that show them


def plain(value: Any, where: str = "the result") -> Any:
    """Return a copy of a party's result that can be sent to the caller of `launch`: tensors are detached, on the CPU.

    where: the name of the value in errors. Raises InputError unless it consists of tensors, numbers, text, None, meters
    and reports, in tuples, lists and dicts.
    """
    if isinstance(value, Tensor) and value.layout == torch.strided and value.device.type != "meta":
        return value.detach().cpu().clone(memory_format=torch.contiguous_format).as_subclass(Tensor)
    if type(value) in (*_PLAIN, *_SHOWN):
        return value
    if type(value) in (list, tuple):
        return type(value)(plain(item, f"{where}[{number}]") for number, item in enumerate(value))
    if type(value) is dict and all(type(key) in _PLAIN for key in value):
        return {key: plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    hint = "return tensors, numbers, text, None, meters, and tuples, lists or dicts of them"
    what = f"a {type(value).__module__}.{type(value).__name__}"
    if isinstance(value, Tensor):
        what, hint = f"a tensor of layout {value.layout} on {value.device}", "return a dense tensor with values"
    raise InputError(f"{where} is {what}", where="launch", hint=hint)


def packed_result(value: Any) -> bytes:
    """Pack a process's report into bytes. value: a dict with a result, as `plain` has returned it, or an error."""
    written = io.BytesIO()
    torch.save(value, written)
    return written.getvalue()


def unpacked_result(content: bytes) -> Any:
    """Return the report that `packed_result` has packed in another process; no code in it is run."""
    with torch.serialization.safe_globals([*_SHOWN, MeterRow]):
        return torch.load(io.BytesIO(content), weights_only=True)


# The function --------------------------------------------------------------------------------------------------------


def packed_call(fn: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> bytes:
    """Pack a function call into bytes, which `unpacked_call` reads in the process of a party.

    fn, args: the function, and its arguments after the session. options: arguments of `hummingbird.init`, by name. The
    bytes also hold converters that were registered, the working directory and the import path. Raises InputError for
    objects that cannot be sent to another process, EnvironmentProblem without cloudpickle.
    """
    pickler = _pickler()
    try:
        call = _dumps(pickler, (fn, args, options, CUSTOM))  # together, so that they share types
    except Exception as error:  # noqa: BLE001 - a type may refuse in any way
        what = f"the function, what it uses, or its arguments cannot be sent to another process: {error}"
        hint = "open files, connections and generators inside the function; give it tensors, nets and plain values"
        raise InputError(what, where="launch", hint=hint) from error
    return _dumps(pickler, (os.getcwd(), sys.path, call))


def unpacked_call(content: bytes) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Unpack what `packed_call` has packed: return the function, its arguments, and the options of `hummingbird.init`.

    Runs in a process that `launch` has started. Also registers the caller's converters, and sets the working directory
    and the import path to those of the caller.
    """
    import cloudpickle

    folder, sys.path[:], call = cloudpickle.loads(content)
    os.chdir(folder)
    fn, args, options, converters = cloudpickle.loads(call)
    CUSTOM.update(converters)
    return fn, args, options


def _dumps(pickler: type[Any], value: Any) -> bytes:
    content = io.BytesIO()
    pickler(content).dump(value)
    return content.getvalue()


def _code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    """Tell pickle how to rebuild a function's code object: as cloudpickle does, but with the code's file name.

    Returns a function and its arguments, as pickle wants them. cloudpickle itself omits the file name from 3.1.3 on.
    """
    import cloudpickle

    _, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _coded, (parts, code.co_filename)


def _coded(parts: tuple[Any, ...], file: str) -> CodeType:
    return CodeType(*parts).replace(co_filename=file)


def _pickler() -> type[Any]:
    """Return a subclass of cloudpickle's pickler that keeps functions' file names, so that tracebacks show lines.

    Raises EnvironmentProblem without cloudpickle.
    """
    with needs("launch", "launch"):
        import cloudpickle

    class Pickler(cloudpickle.Pickler):
        dispatch_table = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)

    return Pickler
