"""Parameters and buffers that forward() turns into Python numbers, as in `x.clamp(max=self.t.item())`.

Numbers are part of the steps, which a client or other parties are given; tensors are not. Where the net's tensors must
stay with their owner, such a number is refused. Tensors of whole numbers are public anyway (public.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hummingbird.graph.build import Unsupported
from hummingbird.graph.example import leaves

# By which a tensor's values become Python's. Truth values are none of them: they choose code, which is public.
_READS = frozenset("item tolist numpy __array__ __int__ __float__ __complex__ __index__".split())
_HINT = "keep it a tensor, as in x * self.t, or write the number into the code if everybody may know it"


class Secret(TorchFunctionMode):
    """A block in which it is an error to read the values of a net's parameters and buffers, or of what is computed of
    them.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        own = [tensor for tensor in (*net.parameters(), *net.buffers()) if tensor.is_floating_point()]
        self._own = WeakIdKeyDictionary(dict.fromkeys(own))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(leaf, Tensor) and leaf in self._own for leaf in leaves((args, kwargs))):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _READS:
            what = f"{name}() of a parameter or buffer: the number would be told to those who must not have the weights"
            raise Unsupported(what, _HINT)
        found = func(*args, **kwargs)
        self._own.update({leaf: None for leaf in leaves(found) if isinstance(leaf, Tensor)})
        return found
