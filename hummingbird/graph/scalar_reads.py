"""Parameters and buffers that forward() turns into Python numbers, as in `x * self.t.item()`.

A number becomes part of the steps, which the client and all parties see; a tensor does not. Where the net's tensors
must stay with their owner, item() and tolist() return tensors of rank 0, which remain weights in a sum or a product;
operations that need a Python number are refused. Integer tensors are public anyway (ops/public.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hummingbird.graph.build import Unsupported
from hummingbird.graph.example import leaves

# Methods that turn a tensor's values into Python's. bool() is not among them: it chooses code, which is public.
_NUMBERS = frozenset({"item", "tolist"})
_READS = frozenset("numpy __array__ __int__ __float__ __complex__ __index__".split())
_HINT = "keep it a tensor, as in x * self.t, or write the number into the code if everybody may know it"
_MOST = 1 << 16  # elements of a tensor whose tolist() is taken


class HiddenNumbers(TorchFunctionMode):
    """A context in which item() and tolist() of a net's floating-point weights and buffers return tensors, not numbers.

    The same holds for tensors that were computed from these. Code that needs a Python number of such a tensor raises
    Unsupported.
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
            what = f"{name}() of a parameter or buffer: the number would be shown to parties without the weights"
            raise Unsupported(what, _HINT)
        found = _listed(func, args[0]) if name in _NUMBERS else func(*args, **kwargs)
        self._own.update({leaf: None for leaf in leaves(found) if isinstance(leaf, Tensor)})
        return found

    def owns(self, value: Any) -> bool:
        """Whether a value is a floating-point parameter or buffer of the net, or a tensor computed from one."""
        return isinstance(value, Tensor) and value in self._own


def _listed(func: Callable[..., Any], x: Tensor) -> Any:
    """Return the result of item() or tolist() of a tensor x, with a tensor without dimensions in place of each number.

    func: item or tolist. Raises Unsupported for item() of several numbers, and for tolist() of too large a tensor.
    """
    if not x.dim() or (func.__name__ == "item" and x.numel() == 1):
        return x.detach().reshape(())
    if func.__name__ == "item" or x.numel() > _MOST:
        raise Unsupported(f"{func.__name__}() of a weight of {x.numel()} numbers", "use the tensor itself")
    return [_listed(func, part) for part in x.unbind(0)]
