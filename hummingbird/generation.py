"""Text generation: one party, or a client of a service, has the prompt, and it alone learns the words.

It looks words up in its table, and shares their vectors. The logits are opened to it alone, and it chooses the next
word. The parties learn how many words the prompt has, and how many are generated, but no word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hummingbird import cost, inputs
from hummingbird.channel import meter
from hummingbird.crypten import tensors
from hummingbird.errors import AgreementError, InputError, shown
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.session import session as sessions
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared, share_secret
from hummingbird.serving.client_conversation import ClientConversation


def generate(
    private: PrivateDecoder | ClientConversation,
    table: Tensor | None,
    numbers: Tensor | None,
    new: int,
    *,
    src: int = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    stop: int | Sequence[int] | None = None,
) -> Tensor | None:
    """Generate the words that follow a prompt of party `src`; return their numbers there, int64 (n,), elsewhere None.

    private: of `convert_decoder`, at every party of a session: all parties call this function with the same `private`,
        `new` and `src`, and all of them with `stop` or none; the rest counts at party `src` alone, and the others may
        pass None. Or a conversation that a client of a service has just made (`Client.conversation`): then the client
        alone calls this function, which returns the words, and `src` has no effect.
    table: float (words, width), the word vectors. numbers: int64 (length,), the prompt's words as rows of the table:
        from 1 to `private.prompt`, of any length within it at the same cost.
    new: how many words follow at most. The prompt takes `private.prompt` places, and each new word but the last one.
    temperature: 0 takes the most likely word; else words are drawn from softmax(logits / temperature).
    top_k: the number of most likely words to draw from; None: all words. generator: the source of the draws, on the
        CPU; None: torch's own.
    stop: a word's number, or several: the text ends with the first of these words. Without, it has `new` words.
    Each call is one conversation. In a session it takes 2 rounds, the steps' rounds (`private.costs`), 1 more for each
    new word and, with `stop`, 1 more for each word but the last of `new`.
    Raises InputError at party `src`, before anything is sent, for wrong arguments and for a text that is too long, and
    AgreementError at all parties if they give another `new` or `src`, or if only some give `stop`. With a client's
    conversation raises InputError likewise, and PeerError if it fails.

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
    >>> words = hummingbird.generate(private, gpt.words.weight, prompt, new=5)
    >>> words.shape
    torch.Size([5])
    >>> ended = hummingbird.generate(private, gpt.words.weight, prompt, new=5, stop=int(words[2]))
    >>> len(ended) <= 3
    True
    >>> hummingbird.generate(private, gpt.words.weight, prompt, new=6)
    Traceback (most recent call last):
        ...
    hummingbird.errors.InputError: 6 new words after a prompt of 4 places need 9 places, and there are 8 (at new)
    hint: at most 5 here; convert the net for more places, or for a shorter prompt
    >>> hummingbird.uninit()
    """
    own = isinstance(private, ClientConversation)
    _check_lengths(private, new)
    session = None if own else sessions.current()
    if session is not None and (type(src) is not int or not 0 <= src < session.parties):
        hint = f"the rank of the party that has the prompt, 0 to {session.parties - 1}"
        raise InputError(f"src={src!r} names no party of {session.parties}", where="src", hint=hint)
    writer = vectors = None
    if session is None or session.rank == src:
        table = _checked_table(private, table)
        vectors = table[_checked_prompt(private, numbers, len(table))]
        _check_choice(temperature, top_k, generator, len(table))
        writer = _Writer(table, temperature, top_k, generator, _checked_stop(stop, len(table)), new)
    if isinstance(private, ClientConversation):
        assert writer is not None and vectors is not None
        return _by_client(private, vectors, writer)
    assert session is not None
    return _by_parties(private, session, vectors, writer, new, src, stop is not None)


@dataclass
class _Writer:
    """The choice of words at the owner of a text.

    table, temperature, top_k, generator, new: as `generate` takes them. stop: numbers of the words that end the text.
    """

    table: Tensor
    temperature: float
    top_k: int | None
    generator: torch.Generator | None
    stop: frozenset[int]
    new: int

    def __post_init__(self) -> None:
        self.found: list[int] = []

    def choose(self, logits: Tensor) -> Tensor:
        """Choose the next word, for logits (words,), and keep its number; return its vector, (1, width)."""
        self.found.append(_chosen(logits.cpu().double(), self.temperature, self.top_k, self.generator))
        return self.table[self.found[-1]][None]

    @property
    def over(self) -> bool:
        """Whether the text has ended."""
        return len(self.found) == self.new or (bool(self.found) and self.found[-1] in self.stop)


def _by_client(talk: ClientConversation, vectors: Tensor, writer: _Writer) -> Tensor:
    """Generate words by steps of a client's conversation, from a prompt's vectors (length, width)."""
    while not writer.over:
        vectors = writer.choose(talk(vectors))
    return torch.tensor(writer.found)


def _by_parties(
    private: PrivateDecoder,
    session: Session,
    vectors: Tensor | None,
    writer: _Writer | None,
    new: int,
    src: int,
    stops: bool,
) -> Tensor | None:
    """Generate words in a session; vectors, writer: None but at party `src`. stops: whether a word may end the text."""
    session.agree("generate", {"new": str(new), "src": str(src), "stop": "given" if stops else "none"})
    x = tensors.shared(tensors.cryptensor(None if vectors is None else vectors[None], src=src))
    x, hidden = private.padded(x)
    talk = private.conversation(session)
    try:
        for number in range(new):
            logits = tensors.tensor(talk.read(x, 0 if number else hidden)).get_plain_text(dst=src)
            code = None if writer is None else inputs.encoded(writer.choose(logits.flatten())[None], "table")
            if number + 1 == new or (stops and _ends(session, writer, src)):
                break
            x = Shared(share_secret(session, code, private.shape(1), src))
    finally:
        talk.close()
    return None if writer is None else torch.tensor(writer.found)


def _ends(session: Session, writer: _Writer | None, src: int) -> bool:
    """Return whether the text has ended, which party `src` tells all others. Takes 1 round."""
    with meter.layer("stop", "tell", cost.telling(session.parties, 8, session.rank == src)):
        word = torch.tensor([int(writer is not None and writer.over)])
        if session.rank == src:
            for peer in session.channel.others:
                session.channel.send(peer, word)
        else:
            word = session.channel.receive(src, [word])[0]
        session.channel.count_round()
    if int(word) not in (0, 1):
        raise AgreementError(f"party {src} sent a malformed word", where="generate")
    return bool(word)


def _chosen(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> int:
    """Return the number of the next word, for logits (words,)."""
    if temperature == 0:
        return int(logits.argmax())
    best, rows = logits.topk(top_k or len(logits))
    return int(rows[torch.multinomial(torch.softmax(best / temperature, 0), 1, generator=generator)])


def _check_lengths(private: Any, new: Any) -> None:
    """Raise InputError unless a prompt and `new` words have places in the private net, or in a new conversation."""
    if not isinstance(private, (PrivateDecoder, ClientConversation)):
        hint = "private = hummingbird.convert_decoder(net, torch.zeros(1, N, width)), or client.conversation()"
        raise InputError(f"expected a private decoder, got {type(private).__name__}", where="private", hint=hint)
    if isinstance(private, ClientConversation) and (private.used or not private.left):
        what = "this conversation has begun, or is over"
        raise InputError(what, where="private", hint="each text takes a new one: client.conversation()")
    if type(new) is not int or new < 1:
        raise InputError(f"new={new!r}", where="new", hint="how many words follow the prompt: 1 or more")
    if private.prompt + new - 1 > private.places:
        most = private.places - private.prompt + 1
        what = f"{new} new words after a prompt of {private.prompt} places need {private.prompt + new - 1} places"
        hint = f"at most {most} here; convert the net for more places, or for a shorter prompt"
        raise InputError(f"{what}, and there are {private.places}", where="new", hint=hint)


def _checked_table(private: PrivateDecoder | ClientConversation, table: Any) -> Tensor:
    """Return the table of word vectors on the CPU; raise InputError unless every row may be an input of the net."""
    expected = (private.words, private.width)
    if not isinstance(table, Tensor) or table.layout != torch.strided or tuple(table.shape) != expected:
        got = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
        hint = "the party that src names gives the net's table, such as net.words.weight"
        raise InputError(f"expected word vectors {expected}, got {got}", where="table", hint=hint)
    table = table.detach().cpu()
    inputs.encoded(torch.stack(table.aminmax()), "table", private.input_range)
    return table


def _checked_prompt(private: PrivateDecoder | ClientConversation, numbers: Any, words: int) -> Tensor:
    """Return the prompt's numbers, int64 on the CPU; raise InputError for other numbers and lengths."""
    found = inputs.numbered(numbers, "numbers", words)
    if found.dim() != 1 or not 1 <= len(found) <= private.prompt:
        hint = f"one dimension with 1 to {private.prompt} words; convert the net with a larger prompt= for longer ones"
        raise InputError(f"a prompt of shape {tuple(found.shape)}", where="numbers", hint=hint)
    return found


def _checked_stop(stop: Any, words: int) -> frozenset[int]:
    """Return the numbers of the words that end a text; raise InputError unless they are rows of the table."""
    given = [] if stop is None else list(stop) if isinstance(stop, (list, tuple, set, frozenset)) else [stop]
    if (stop is not None and not given) or not all(type(each) is int and 0 <= each < words for each in given):
        hint = f"a word's number, 0 to {words - 1}, or a list of such numbers; None: no word ends the text"
        raise InputError(f"stop={shown(stop)}", where="stop", hint=hint)
    return frozenset(given)


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
