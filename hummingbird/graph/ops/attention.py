"""Attention: products of two values of the net, masks, and the modules and functions made of them.

    attention(q, k, v) = softmax(q k^T / sqrt(d) + mask) v

Every part is a step: "root_scale" divides by the root of the last dimension's length, "matmul" multiplies two values,
"causal" hides later keys. A mask subtracts 2^12 from the logits that it hides, where torch subtracts infinity: for
logits that differ by less than 4,000 the softmax is the same. A row whose logits are all hidden is refused: torch
returns NaN, zeros or a mean for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import PUBLIC, TENSOR, TUPLE, StepBuilder, Unsupported
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops import linear, public
from hummingbird.graph.ops.op import Attrs, Op, Refused, Spelling
from hummingbird.graph.ops.public import HIDDEN
from hummingbird.graph.steps import Ref
from hummingbird.kernels.devices import put

# Attributes of nn.MultiheadAttention that `multihead` takes.
PARTS = "num_heads batch_first in_proj_weight in_proj_bias q_proj_weight k_proj_weight v_proj_weight"
PARTS += " bias_k bias_v add_zero_attn out_proj"


def matmul(b: StepBuilder, input: Any, other: Any) -> Ref:
    """Convert a call of matmul to a step: a product of two values, broadcast as in torch, or a linear layer.

    A value times a constant matrix becomes a linear layer.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if b.kind(input) and b.kind(other):
        return b.emit("matmul", b.tensor(input), b.tensor(other, "the other factor"))
    return linear.matmul(b, input, other)


def bmm(b: StepBuilder, input: Any, mat2: Any) -> Ref:
    """Convert a call of bmm to a step that multiplies two batches of matrices.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    return matmul(b, input, mat2)


def baddbmm(b: StepBuilder, input: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> Ref:
    """Convert a call of baddbmm to steps: beta input + alpha batch1 batch2, where `input` may be constant.

    The net computes batch1 and batch2. A constant of zeros and numbers below -2^20 is an attention mask: exported
    nn.MultiheadAttention adds it so where its weights are needed (`hidden`).
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    factors = (b.tensor(batch1, "batch1"), b.tensor(batch2, "batch2"))
    product = _times(b, b.emit("matmul", *factors, suffix=".matmul"), alpha, ".product")
    if b.number(beta, "beta") == 0:
        return product
    if isinstance(input, Tensor) and beta == 1:
        masked = input < -(2.0**20)  # which no value of a net reaches
        is_mask = bool((masked | (input == 0)).all()) and bool(masked.any())
        return b.emit("add", product, value=hidden(b, ~masked) if is_mask else b.weight(input, "input"))
    return b.emit("add", _times(b, b.tensor(input), beta, ".input"), product)


def addmm(b: StepBuilder, input: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Ref:
    """Convert a call of addmm to a linear layer: a constant row plus a value times a constant matrix.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if b.kind(input) or (beta, alpha) != (1, 1) or not isinstance(input, Tensor) or input.dim() != 1:
        raise Unsupported("addmm of anything but a constant row and matrix", "write it as a product and a sum")
    if b.kind(mat2) or not isinstance(mat2, Tensor) or mat2.dim() != 2:
        raise Unsupported("addmm with a matrix that is no constant", "write it as a product and a sum")
    weight = b.weight(mat2, "matrix").t().contiguous()
    return b.emit("linear", b.tensor(mat1), weight=weight, bias=b.weight(input, "bias"))


def einsum(b: StepBuilder, equation: Any, *operands: Any) -> Ref:
    """Convert a call of einsum on two values of the net to a step.

    The equation must have an arrow, and each index at most once in an operand; other equations raise Unsupported.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        raise Unsupported("einsum of anything but two values", "write it as products of two")
    terms = equation.replace(" ", "")
    left, arrow, out = terms.partition("->")
    first, _, second = left.partition(",")
    known = set(first) | set(second)
    single = all(len(set(term)) == len(term) for term in (first, second, out))
    if not arrow or not terms.replace(",", "").replace("->", "").isalpha() or not single or not set(out) <= known:
        raise Unsupported(f"einsum with {equation!r}", "write all indices, an arrow, and each index once in a term")
    return b.emit("einsum", *(b.tensor(value, "every operand of einsum") for value in operands), equation=terms)


def scaled_dot_product_attention(
    b: StepBuilder,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Ref:
    """Convert a call of torch's function of this name to steps; the mask must be constant or public.

    Dropout and grouped queries raise Unsupported.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if dropout_p:
        raise Unsupported(f"attention with dropout_p={dropout_p}", "pass dropout_p=0 at inference")
    if enable_gqa:
        raise Unsupported("attention with enable_gqa=True", "repeat keys and values before")
    weights = _weights(b, query, key, attn_mask, bool(is_causal), scale)
    return b.emit("matmul", weights, b.tensor(value, "value"))


def _weights(b: StepBuilder, query: Any, key: Any, mask: Any, causal: bool, scale: float | None) -> Ref:
    q = b.tensor(query, "query")
    q = b.emit("root_scale", q, suffix=".scale") if scale is None else _times(b, q, scale, ".scale")
    turned = b.emit("transpose", b.tensor(key, "key"), suffix=".turn", dim0=-2, dim1=-1)
    logits = b.emit("matmul", q, turned, suffix=".logits")
    if causal:
        logits = b.emit("causal", logits, suffix=".causal")
    if b.kind(mask) == PUBLIC:
        added = public.share(b, public.emit(b, "hidden", (mask,), {}, suffix=".hidden"), TENSOR)
        logits = b.emit("add", logits, added, suffix=".mask")
    elif mask is not None:
        logits = b.emit("add", logits, suffix=".mask", value=hidden(b, mask))
    return b.emit("softmax", logits, suffix=".softmax", dim=-1)


def hidden(b: StepBuilder, mask: Any) -> Tensor:
    """Return the constant tensor that an attention mask adds to the logits: 0 where shown, -4096 where hidden.

    mask: a constant, bool with True where shown, or numbers to add (`public.hidden` converts it). Raises Unsupported
        for a mask that is no constant.
    """
    if not isinstance(mask, Tensor):
        raise Unsupported("a mask that depends on the net's input", "make the mask in __init__: it must be a constant")
    try:
        return b.weight(public.hidden(mask), "attn_mask")
    except InputError as error:
        raise Unsupported(error.what, error.hint) from None


def is_causal_mask(mask: Tensor) -> bool:
    """Whether a mask hides from each query exactly the keys that come after it.

    mask: (queries, keys), True or -inf where a key is hidden.
    """
    later = ~shown(*mask.shape).to(mask.device)
    if mask.dtype == torch.bool:
        return torch.equal(mask, later)
    return bool((mask[~later] == 0).all()) and bool((mask[later] < HIDDEN).all())


def _times(b: StepBuilder, x: Ref, factor: Any, suffix: str) -> Ref:
    number = b.number(factor, "the scale")
    return x if number == 1 else b.emit("mul", x, suffix=suffix, value=number)


def multihead(
    b: StepBuilder,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    num_heads: int,
    batch_first: bool,
    in_proj_weight: Any,
    in_proj_bias: Any,
    q_proj_weight: Any,
    k_proj_weight: Any,
    v_proj_weight: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    out_proj: nn.Linear,
) -> tuple[Ref, Ref | None]:
    """Convert a call of nn.MultiheadAttention, on a batch, to steps.

    The arguments after `b` are the call's, then the module's attributes. Returns references to the result and to the
    attention weights; None in place of the weights without `need_weights`.
    """
    if bias_k is not None or bias_v is not None or add_zero_attn:
        raise Unsupported("attention with bias_k, bias_v or add_zero_attn", "leave them at their defaults")
    if key_padding_mask is not None:
        raise Unsupported("a key_padding_mask", "give inputs of one length, or a constant attn_mask")
    if attn_mask is not None:  # True hides here, and shows in scaled_dot_product_attention; is_causal is only a hint
        if not isinstance(attn_mask, Tensor) or attn_mask.dim() != 2:
            raise Unsupported("an attn_mask other than a constant matrix", "make it in __init__, (queries, keys)")
        if is_causal and not is_causal_mask(attn_mask):  # torch then takes this mask or the causal one, as it suits
            raise Unsupported("is_causal=True with a mask that is not causal", "leave is_causal out")
        attn_mask = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
    elif is_causal:
        raise Unsupported("is_causal without attn_mask", "torch asks for the mask too")
    parts = _projected(
        b, (query, key, value), in_proj_weight, in_proj_bias, (q_proj_weight, k_proj_weight, v_proj_weight)
    )
    heads = []
    for name, part in zip("qkv", parts, strict=True):
        if not batch_first:
            part = b.emit("permute", part, suffix=f".{name}_first", dims=(1, 0, 2))
        part = b.emit("unflatten", part, suffix=f".{name}_heads", dim=-1, sizes=(num_heads, -1))
        heads.append(b.emit("transpose", part, suffix=f".{name}_turn", dim0=-3, dim1=-2))
    weights = _weights(b, heads[0], heads[1], attn_mask, False, None)
    out = b.emit("matmul", weights, heads[2], suffix=".mix")
    out = b.emit("transpose", out, suffix=".back", dim0=-3, dim1=-2)
    out = b.emit("flatten", out, suffix=".join", start=-2, end=-1)
    bias = None if out_proj.bias is None else b.weight(out_proj.bias, "bias")
    out = b.emit("linear", out, suffix=".out_proj", weight=b.weight(out_proj.weight), bias=bias)
    if not batch_first:
        out = b.emit("permute", out, suffix=".out_last", dims=(1, 0, 2))
    if not need_weights:
        return out, None
    return out, b.emit("mean", weights, suffix=".mean", dims=(-3,), keepdim=False) if average_attn_weights else weights


def _projected(b: StepBuilder, given: tuple[Any, ...], joint: Any, bias: Any, apart: tuple[Any, ...]) -> list[Ref]:
    """Emit the linear layers that make queries, keys and values, and return references to the three values.

    A single layer makes all three if they have the same input. given: the inputs of the layers for queries, keys and
    values. joint: the weights of all three layers in one tensor, or None. bias: their biases in one tensor, or None.
    apart: the weights one by one, for `joint` None.
    """
    query, key, value = given
    biases = (None,) * 3 if bias is None else b.weight(bias, "bias").chunk(3)
    if joint is not None and query == key == value:
        whole = b.emit(
            "linear",
            b.tensor(query, "query"),
            suffix=".in_proj",
            weight=b.weight(joint),
            bias=None if bias is None else b.weight(bias, "bias"),
        )
        parts = b.emit("chunk", whole, suffix=".parts", kind=TUPLE, chunks=3, dim=-1)
        return [b.emit("getitem", parts, suffix=f".{name}", index=index) for index, name in enumerate("qkv")]
    weights = [b.weight(weight) for weight in apart] if joint is None else b.weight(joint).chunk(3)
    return [
        b.emit(
            "linear", b.tensor(x, "query, key and value"), suffix=f".{name}_proj", weight=weight.contiguous(), bias=own
        )
        for name, x, weight, own in zip("qkv", given, weights, biases, strict=True)
    ]


def _matmul(a: Attrs, x: Tensor, y: Tensor) -> Tensor:
    if min(x.dim(), y.dim()) < 2:
        what = f"a matrix product of values of shapes {tuple(x.shape)} and {tuple(y.shape)}"
        raise InputError(what, hint="both factors have two dimensions or more")
    return x @ y


def shown(size: int, others: int) -> Tensor:
    """Return the causal attention mask, bool (size, others): True where a query sees a key.

    Query i sees the keys 0 to i. size: the number of queries. others: the number of keys.
    """
    return torch.ones(size, others, dtype=torch.bool).tril()


def _causal(a: Attrs, x: Tensor) -> Tensor:
    hidden = torch.zeros(x.shape[-2:], dtype=x.dtype).masked_fill(~shown(*x.shape[-2:]), HIDDEN)
    return x + put(hidden, x.device)


def shown_places(x: Tensor, causal: bool, hidden: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Compute which logits no attention mask hides: bool in the shape of x, True where shown.

    Returns None without any mask, and for x on the meta device.
    x: the logits, (..., queries, keys). causal: whether each query sees no key after its own position. hidden: a
    constant mask, bool, True for hidden logits. mask: a public mask, from `public.hidden`.
    """
    found = [] if hidden is None else [~hidden]
    if causal:
        found.append(shown(*x.shape[-2:]))
    if mask is not None:
        found.append(mask > HIDDEN)
    if not found or x.is_meta:
        return None
    every = found[0].to(x.device)
    for other in found[1:]:
        every = every & other.to(x.device)
    return every.expand(x.shape)


# Chunks of a causal net (causal.py): rows [start, start + c) of a sequence read the rows before them from a cache. A
# public tensor `at`, int64 (2,), has the number of hidden rows at the sequence's beginning, and of rows before it.


def _seen(a: Attrs, at: Tensor) -> Tensor:
    """Return the attention mask of a chunk's last rows, float (rows, places): 0 where shown, -4096 where hidden.

    a: "rows", "chunk" (rows of the whole chunk) and "places" (keys). A row sees itself, and of the rows before it those
    that are not hidden.
    """
    keys = torch.arange(a["places"], device=at.device)
    own = (at[1] + a["chunk"] - a["rows"] + torch.arange(a["rows"], device=at.device))[:, None]
    seen = (keys <= own) & ((keys >= at[0]) | (keys == own))
    return torch.where(seen, 0.0, HIDDEN)


def _rows_at(a: Attrs, x: Tensor, at: Tensor) -> Tensor:
    """Return the rows of a table that belong to a chunk's last rows; hidden ones have the first.

    a: "dim", the table's dimension of places, from the end; "rows" and "chunk" as for `_seen`.
    """
    own = at[1] + a["chunk"] - a["rows"] + torch.arange(a["rows"], device=at.device) - at[0]
    return x.index_select(a["dim"], own.clamp(min=0).to(x.device))


def _cached_matmul(a: Attrs, x: Tensor, new: Tensor, *mask: Tensor) -> Tensor:
    """Return a value in the shape of a product with cached rows; causal.py computes products on caches.

    a: "turned", whether the rows are keys, new (..., d, c), else new (..., c, d); "places", how many rows are read.
    mask: of the weights x, for its private form.
    """
    if a["turned"]:
        return x @ new[..., :1].expand(*new.shape[:-1], a["places"])
    return x @ new[..., :1, :].expand(*new.shape[:-2], a["places"], new.shape[-1])


def _is_equation(value: Any) -> bool:
    """Whether a value is an einsum equation of two operands, such as "bij,bjk->bik"."""
    left, arrow, out = value.partition("->") if type(value) is str else ("", "", "")
    first, comma, second = left.partition(",")
    terms = (first, second, out)
    fine = all(len(set(term)) == len(term) <= 16 and (term.isalpha() or not term) for term in terms)
    return bool(arrow and comma and fine and value.isascii() and set(out) <= set(first) | set(second))


OPS = [
    Op(
        "matmul",
        _matmul,
        ranks.multiplied,
        [
            Spelling(matmul, "matmul mm", operators="matmul"),
            Spelling(bmm, "bmm"),
            Spelling(addmm, "addmm"),
            Spelling(baddbmm, "baddbmm"),
        ],
        inputs="x x",
        batch=batch.multiplied,
        integers="kept",
    ),
    Op(
        "einsum",
        lambda a, x, y: torch.einsum(a["equation"], x, y),
        lambda a, given: len(a["equation"].partition("->")[2]),
        [Spelling(einsum, "einsum")],
        inputs="x x",
        attrs="equation=equation",
        kinds={"equation": _is_equation},
        batch=batch.einsum,
        integers="kept",
    ),
    Op(
        "root_scale",
        lambda a, x: x * x.shape[-1] ** -0.5,
        ranks.stays,
        batch=batch.apart(axis=lambda a, shape: (-1,)),
    ),
    Op("seen", _seen, lambda a, given: 2, inputs="public", attrs=None, makes=PUBLIC),
    Op("rows_at", _rows_at, ranks.first, inputs="x public", attrs=None),
    Op("cached_matmul", _cached_matmul, ranks.multiplied, inputs="x x", attrs=None),
    Op("causal", _causal, ranks.stays, batch=batch.apart(axis=lambda a, shape: (-1, -2))),
]
SPELLINGS = [
    Spelling(scaled_dot_product_attention, "scaled_dot_product_attention"),
    Spelling(multihead, modules={nn.MultiheadAttention: PARTS}),
]
REFUSED = [
    Refused(
        "write it with nn.MultiheadAttention or F.scaled_dot_product_attention",
        (nn.Transformer, nn.TransformerDecoder, nn.TransformerDecoderLayer),
        "multi_head_attention_forward",
    ),
]
