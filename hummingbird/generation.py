"""Text generation in a program that all parties run: one party has the prompt, and it alone learns the words.

That party looks words up in its table and shares their vectors. The logits are opened to it alone, and it chooses the
next word. The others learn how many words the prompt has, and how many are generated, but no word.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hummingbird import inputs
from hummingbird.crypten import tensors
from hummingbird.errors import InputError
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.session import session as sessions
from hummingbird.mpc.session.sharing import Shared, share_secret


def generate(
    private: PrivateDecoder,
    table: Tensor | None,
    numbers: Tensor | None,
    new: int,
    *,
    src: int = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor | None:
    """Generate the words that follow a prompt of party `src`; return their numbers there, int64 (new,), elsewhere None.

    All parties call it with the same `private` (of `convert_decoder`), `new` and `src`; the rest counts at party `src`
    alone, and the others may pass None.
    table: float (words, width), the word vectors. numbers: int64 (length,), the prompt's words as rows of the table:
        from 1 to `private.prompt`, of any length within it at the same cost.
    new: how many words follow. The prompt takes `private.prompt` places, and each new word but the last takes one.
    temperature: 0 takes the most likely word; else words are drawn from softmax(logits / temperature).
    top_k: draw among so many most likely words; None: among all. generator: where the draws come from, on the CPU;
        None: torch's own.
    Each call is one conversation. It takes 2 rounds, the steps' rounds (`private.costs`), and 1 more for each new word.
    Raises InputError at party `src`, before anything is sent, for wrong arguments and for a text that is too long, and
    AgreementError at all parties if they give another `new` or `src`.

    >>> class Gpt(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.words, self.qkv = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 48)
    ...     def forward(self, x):
    ...         q, k, v = self.qkv(x).chunk(3, -1)
    ...         attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    ...         return (x + attended) @ self.words.weight.T
    >>> gpt = Gpt().eval()
    >>> session = hummingbird.init()
    >>> private = hummingbird.convert_decoder(gpt, torch.zeros(1, 8, 16), prompt=4)
    >>> prompt = torch.tensor([7, 3, 11]) if session.rank == 0 else None
    >>> hummingbird.generate(private, gpt.words.weight, prompt, new=5).shape
    torch.Size([5])
    >>> hummingbird.generate(private, gpt.words.weight, prompt, new=6)
    Traceback (most recent call last):
        ...
    hummingbird.errors.InputError: 6 new words after a prompt of 4 places need 9 places, and there are 8 (at new)
    hint: at most 5 here; convert the net for more places, or for a shorter prompt
    >>> hummingbird.uninit()
    """
    session = sessions.current()
    _check_lengths(private, new)
    if type(src) is not int or not 0 <= src < session.parties:
        hint = f"the rank of the party that has the prompt, 0 to {session.parties - 1}"
        raise InputError(f"src={src!r} names no party of {session.parties}", where="src", hint=hint)
    found: list[int] = []
    vectors = None
    if session.rank == src:
        table = _checked_table(private, table)
        vectors = table[_checked_prompt(private, numbers, len(table))][None]
        _check_choice(temperature, top_k, generator, len(table))
    session.agree("generate", {"new": str(new), "src": str(src)})
    x = tensors.shared(tensors.cryptensor(vectors, src=src))
    hidden = private.prompt - x.shape[1]
    x = Shared(torch.cat([x.share[:, :1].expand(-1, hidden, -1), x.share], 1), x.scale)
    talk = private.conversation(session)
    try:
        for number in range(new):
            logits = tensors.tensor(talk.read(x, 0 if number else hidden)).get_plain_text(dst=src)
            code = None
            if session.rank == src and table is not None:
                found.append(_chosen(logits.flatten().cpu().double(), temperature, top_k, generator))
                code = inputs.encoded(table[found[-1]].view(1, 1, -1), "table")
            if number + 1 < new:
                x = Shared(share_secret(session, code, private.shape(1), src))
    finally:
        talk.close()
    return torch.tensor(found) if session.rank == src else None


def _chosen(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> int:
    """Return the number of the next word, for logits (words,)."""
    if temperature == 0:
        return int(logits.argmax())
    best, rows = logits.topk(top_k or len(logits))
    return int(rows[torch.multinomial(torch.softmax(best / temperature, 0), 1, generator=generator)])


def _check_lengths(private: Any, new: Any) -> None:
    """Raise InputError unless a prompt and `new` words have places in the private net."""
    if not isinstance(private, PrivateDecoder):
        hint = "private = hummingbird.convert_decoder(net, torch.zeros(1, N, width))"
        raise InputError(f"expected a private decoder, got {type(private).__name__}", where="private", hint=hint)
    if type(new) is not int or new < 1:
        raise InputError(f"new={new!r}", where="new", hint="how many words follow the prompt: 1 or more")
    if private.prompt + new - 1 > private.places:
        most = private.places - private.prompt + 1
        what = f"{new} new words after a prompt of {private.prompt} places need {private.prompt + new - 1} places"
        hint = f"at most {most} here; convert the net for more places, or for a shorter prompt"
        raise InputError(f"{what}, and there are {private.places}", where="new", hint=hint)


def _checked_table(private: PrivateDecoder, table: Any) -> Tensor:
    """Return the table of word vectors on the CPU; raise InputError unless every row may be an input of the net."""
    expected = (private.words, private.width)
    if not isinstance(table, Tensor) or table.layout != torch.strided or tuple(table.shape) != expected:
        got = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
        hint = "the party that src names gives the net's table, such as net.words.weight"
        raise InputError(f"expected word vectors {expected}, got {got}", where="table", hint=hint)
    table = table.detach().cpu()
    inputs.encoded(torch.stack(table.aminmax()), "table")
    return table


def _checked_prompt(private: PrivateDecoder, numbers: Any, words: int) -> Tensor:
    """Return the prompt's numbers, int64 on the CPU; raise InputError for other numbers and lengths."""
    found = inputs.numbered(numbers, "numbers", words)
    if found.dim() != 1 or not 1 <= len(found) <= private.prompt:
        hint = f"one dimension with 1 to {private.prompt} words; convert the net with a larger prompt= for longer ones"
        raise InputError(f"a prompt of shape {tuple(found.shape)}", where="numbers", hint=hint)
    return found


def _check_choice(temperature: Any, top_k: Any, generator: Any, words: int) -> None:
    """Raise InputError unless words can be chosen so."""
    number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature < math.inf:
        hint = "0 for the most likely word, or a positive number, such as 0.8"
        raise InputError(f"temperature={temperature!r}", where="temperature", hint=hint)
    if top_k is not None and (type(top_k) is not int or not 1 <= top_k <= words):
        raise InputError(f"top_k={top_k!r}", where="top_k", hint=f"from 1 to the table's {words} words, or None")
    if generator is not None and not (isinstance(generator, torch.Generator) and generator.device.type == "cpu"):
        got = f"one on {generator.device}" if isinstance(generator, torch.Generator) else type(generator).__name__
        raise InputError(
            f"expected a torch.Generator on the CPU, got {got}", where="generator", hint="torch.Generator()"
        )
