"""Sequences of different lengths in one tensor, for recurrent layers: torch's packing, with public lengths.

While a net is traced, `pack` and `pad` stand in for torch's pack_padded_sequence and pad_packed_sequence. The tensor
stays padded, and a recurrent layer computes all time steps of all sequences (recurrent.py). Public masks then choose
the results: behind the end of its sequence an output is 0, the last state is the state at the end, and a layer that
goes backwards keeps its first state until it is inside of the sequence (`public.shown`, which sends nothing).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils import rnn

from hummingbird.graph.build import Unsupported
from hummingbird.graph.example import PUBLIC_TYPES
from hummingbird.graph.ops.public import inside, shown


class Sequences(NamedTuple):
    """A packed sequence while a net is traced.

    x: the padded tensor, with the batch in dimension 0 and time in dimension 1, or the other way round. time: the
    dimension of x that counts time steps. lengths: of the sequences, (batch,): a symbol, or a tensor of numbers. mask:
    (batch, time), true at the time steps of each sequence (`public.inside`).
    """

    x: Any
    time: int
    lengths: Any
    mask: Any

    def ends(self) -> Any:
        """Return the public mask (batch, time) that is true at the last time step of each sequence."""
        return self.mask ^ F.pad(self.mask[:, 1:], (0, 1))

    def chosen(self, x: Any, mask: Any) -> Any:
        """Return the values x of all time steps, in the layout of the padded tensor, where a mask is true; else 0.

        mask: public, (batch, time).
        """
        return shown(x, (mask if self.time else mask.transpose(0, 1)).unsqueeze(2))


# torch's functions ---------------------------------------------------------------------------------------------------


_PACK, _PAD = rnn.pack_padded_sequence, rnn.pad_packed_sequence


def pack(input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> Any:
    """Stand in for torch's pack_padded_sequence, whose arguments it has; return a `Sequences` for a symbol.

    Raises Unsupported for lengths that are not public, and for more or fewer lengths than sequences.
    """
    if not isinstance(input, fx.Proxy):
        return _PACK(input, lengths, batch_first, enforce_sorted)
    x: Any = input
    if isinstance(lengths, fx.Proxy):
        tracer: Any = lengths.tracer
        if tracer.known(lengths).dtype not in PUBLIC_TYPES:
            what = "pack_padded_sequence with private lengths"
            raise Unsupported(what, "give them as int64, which are public: example=(x, lengths)")
    else:
        lengths = torch.as_tensor(lengths, dtype=torch.int64)
    time = 1 if batch_first else 0
    if lengths.dim() != 1 or lengths.shape[0] != x.shape[1 - time]:
        raise Unsupported(
            "pack_padded_sequence with more or fewer lengths than sequences", "give one for each sequence"
        )
    mask = inside(lengths, x.shape[time])  # here, so that wrong lengths are refused before the layer runs
    return Sequences(x, time, lengths, mask)


def pad(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Any, Any]:
    """Stand in for torch's pad_packed_sequence, whose arguments it has; return the padded tensor and the lengths.

    Raises Unsupported for another padding than 0, and if the result's number of time steps would depend on a call.
    A sequence that is longer than `total_length` is refused, as in torch: at once, or in the call that brings it.
    """
    if not isinstance(sequence, Sequences):
        return _PAD(sequence, batch_first, padding_value, total_length)
    steps, lengths = sequence.x.shape[sequence.time], sequence.lengths
    if padding_value != 0:
        raise Unsupported(f"pad_packed_sequence with padding_value={padding_value}", "leave it out: 0")
    longest = int(lengths.max()) if isinstance(lengths, Tensor) else None
    total = longest if total_length is None else total_length
    if total is None:
        what = "pad_packed_sequence to the longest sequence of a call, which decides the result's shape"
        raise Unsupported(what, "give the padded tensor's number of time steps: total_length=x.shape[1]")
    x, time = sequence.x, sequence.time
    if total > steps:
        x = F.pad(x, (*(0, 0) * (2 - time), 0, total - steps))
    elif total < steps:
        x = x.narrow(time, 0, total)
        x = x if total == longest else sequence.chosen(x, inside(lengths, total))  # which refuses longer sequences
    return x if time == int(batch_first) else x.transpose(0, 1), lengths


@contextlib.contextmanager
def stand_ins(net: nn.Module) -> Iterator[None]:
    """Replace torch's functions for packing by those above, in this block, where the code of a net finds them.

    That is by their own names in all modules, and by any names in those that define a forward() of the net.
    """
    own = {id(home): home for module in net.modules() if (home := getattr(type(module).forward, "__globals__", {}))}
    found = [(home, name) for home in own.values() for name, value in home.items() if value is _PACK or value is _PAD]
    homes = [vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")]
    found += [
        (home, value.__name__)
        for home in homes
        for value in (_PACK, _PAD)
        if id(home) not in own and home.get(value.__name__) is value
    ]
    originals = [home[name] for home, name in found]
    for (home, name), value in zip(found, originals, strict=True):
        home[name] = pack if value is _PACK else pad
    try:
        yield
    finally:
        for (home, name), value in zip(found, originals, strict=True):
            home[name] = value
