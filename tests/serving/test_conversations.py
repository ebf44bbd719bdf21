"""Text that clients of a service generate: the words of plain torch, one run of each step, refusals with a reason."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch
from torch import Tensor

import hummingbird
from hummingbird import convert, cost, ring
from hummingbird.channel import meter
from hummingbird.cost import FREE
from hummingbird.errors import AgreementError, ConfigError, InputError, UnavailableError
from hummingbird.prg import new_seed
from hummingbird.serving.message import END, TALK_BYTES, Question, Request, step_id
from hummingbird.serving.models import Models, ServedModel
from hummingbird.serving.party_group import Joined, PartyGroup
from hummingbird.serving.plan import describe
from hummingbird.serving.scheduler import Action, Claim, Conversations, Decision, Scheduler
from hummingbird.serving.worker import Steps, Worker
from models.gpt import Gpt
from tests.serving.test_scheduler import scheduler
from tests.support.parties import sessions, together
from tests.support.patience import NEVER, until
from tests.support.serving import Foreign, Service

WORDS, PLACES, WIDTH, PROMPT = 20, 12, 16, 4
MODEL = ("--model", "models.gpt:Gpt", *map(str, (WORDS, PLACES, WIDTH, 2, 1)))
SERVE = (*MODEL, "--input", f"{PLACES}x{WIDTH}", "--prompt", str(PROMPT))
# A softmax errs by up to 2^-7 of its result, a norm and a GELU by about 2^-10: together below 2^-5 of the logits.
CLOSE = 2.0**-5


def net() -> Gpt:
    """The net that the service serves."""
    torch.manual_seed(0)
    return Gpt(WORDS, PLACES, WIDTH, 2, 1).eval()


PLAIN = net()  # made once: threads that draw weights at the same time disturb each other's


def vectors(*numbers: int) -> Tensor:
    return PLAIN.words.weight.detach()[list(numbers)]


def right(logits: Tensor, *numbers: int) -> None:
    """Check the logits behind a text against those of plain torch."""
    padded = torch.cat([vectors(*numbers), torch.zeros(PLACES - len(numbers), WIDTH)])[None]
    with torch.no_grad():
        expected = PLAIN(padded)[0, len(numbers) - 1]
    assert (logits - expected).abs().max() < CLOSE * expected.abs().max()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(*SERVE, metrics=True) as opened:
        yield opened


@pytest.fixture
def foreign(service: Service) -> Iterator[Foreign]:
    opened = Foreign(service)
    yield opened
    opened.close()


def step(foreign: Foreign, talk: bytes, number: int, *numbers: int, attempt: int = 0, **changed: object) -> list[bytes]:
    """The messages of a conversation's step that reads these words."""
    words = vectors(*numbers) if numbers else torch.zeros(0, WIDTH)
    return foreign.messages(words, id=step_id(talk, number, attempt), **changed)


def waiting(service: Service) -> bool:
    """Whether a request waits at party 0."""
    return service.figures(0)["hummingbird_serving_waiting_requests"] > 0


def answers(foreign: Foreign, messages: Sequence[bytes]) -> list[bytes]:
    return [call.result() for call in foreign.begin(messages)]


def refused(foreign: Foreign, messages: Sequence[bytes]) -> set[str]:
    """The first lines of both parties' refusals of a step."""
    found = set()
    for call in foreign.begin(messages):
        with pytest.raises(grpc.RpcError) as caught:
            call.result()
        found.add(str(caught.value.details()).splitlines()[0])
    return found


# Conversations of a client --------------------------------------------------------------------------------------------


def test_a_text_is_read_word_after_word(service: Service) -> None:
    with service.client() as client:
        with client.conversation() as talk:
            assert (talk.prompt, talk.places, talk.width, talk.words) == (PROMPT, PLACES, WIDTH, WORDS)
            right(talk(vectors(7, 3, 11)), 7, 3, 11)
            assert (talk.used, talk.left) == (PROMPT, PLACES - PROMPT)
            right(talk(vectors(2)), 7, 3, 11, 2)
            right(asyncio.run(talk.ask(vectors(19))), 7, 3, 11, 2, 19)
            assert (talk.used, talk.left) == (PROMPT + 2, PLACES - PROMPT - 2)
            known = client.service
            prices = [cost.asking(2, n * WIDTH, known.bits, WORDS, known.result_bits) for n in (3, 1, 1)]
            assert (client.sent_bytes, client.received_bytes) == tuple(map(sum, zip(*prices, strict=True)))
        assert talk.left == 0
        with pytest.raises(InputError, match="over: it is closed"):
            talk(vectors(2))


@pytest.mark.slow
def test_conversations_do_not_mix_and_each_ends_when_its_places_are_used(service: Service) -> None:
    texts = [[1, 2, 3], [9]]
    with service.client() as client, client.conversation() as one, client.conversation() as other:
        for words, talk in zip(texts, (one, other), strict=True):
            right(talk(vectors(*words)), *words)
        for word in range(PLACES - PROMPT):
            for words, talk in zip(texts, (one, other), strict=True):
                words.append((5 * word + len(words)) % WORDS)
                right(talk(vectors(words[-1])), *words)
        sent = client.sent_bytes
        for talk in (one, other):
            assert (talk.used, talk.left) == (PLACES, 0)
            with pytest.raises(InputError, match="all 12 places of this conversation are used"):
                talk(vectors(1))
        with client.conversation() as third:  # there is room for another one: the parties have forgotten both
            right(third(vectors(4)), 4)
            assert client.sent_bytes > sent


def test_a_client_generates_words_and_stops_at_a_word(service: Service) -> None:
    table, prompt = net().words.weight, torch.tensor([7, 3, 11])
    expected = [7, 3, 11]
    for _ in range(5):
        with torch.no_grad():
            padded = torch.cat([table[expected], torch.zeros(PLACES - len(expected), WIDTH)])[None]
            best = net()(padded)[0, len(expected) - 1]
        assert float(best.topk(2).values.diff().abs()) > CLOSE * float(best.abs().max())
        expected.append(int(best.argmax()))
    with service.client() as client:
        with client.conversation() as talk:
            found = hummingbird.generate(talk, table, prompt, new=5)
            assert found is not None and found.tolist() == expected[3:]
            with pytest.raises(InputError, match="this conversation has begun"):
                hummingbird.generate(talk, table, prompt, new=1)
        with client.conversation() as talk:
            last = expected.index(expected[5], 3) + 1  # the first place of the third word
            ended = hummingbird.generate(talk, table, prompt, new=5, stop=[expected[5], WORDS - 1])
            assert ended is not None and ended.tolist() == expected[3:last]
        with client.conversation() as talk:
            with pytest.raises(InputError, match="need 13 places, and there are 12"):
                hummingbird.generate(talk, table, prompt, new=PLACES - PROMPT + 2)
            with pytest.raises(InputError, match="stop=20"):
                hummingbird.generate(talk, table, prompt, new=1, stop=WORDS)
            assert client.sent_bytes > 0 and talk.used == 0


def test_wrong_words_are_refused_before_anything_is_sent(service: Service) -> None:
    with service.client() as client, client.conversation() as talk:
        for words in (vectors(1, 2, 3, 4, 5), vectors(1)[0], vectors(1)[:, :-1], vectors()):
            with pytest.raises(InputError, match=r"expected word vectors \(1 to 4, 16\)"):
                talk(words)
        with pytest.raises(InputError, match="floating-point"):
            talk(torch.ones(1, WIDTH, dtype=torch.int64))
        with pytest.raises(InputError, match="this service generates text"):
            client(vectors(1))
        assert client.sent_bytes == 0
        talk(vectors(1))
        with pytest.raises(InputError, match=r"expected word vectors \(1, 16\), got \(2, 16\)"):
            talk(vectors(1, 2))
        talk(vectors(1))


# What the parties refuse ----------------------------------------------------------------------------------------------


def test_a_step_runs_once_and_in_its_order(foreign: Foreign) -> None:
    talk = new_seed(TALK_BYTES)
    first = step(foreign, talk, 0, 7, 3)
    got = answers(foreign, first)
    assert answers(foreign, first) == got  # the same bytes again
    unknown = new_seed(TALK_BYTES)
    assert refused(foreign, step(foreign, unknown, 1, 5)) == {
        "there is no such conversation: it has ended, or never begun (at conversation)"
    }
    known = {"this id is known with other shares (at request)"}
    assert refused(foreign, step(foreign, talk, 0, 7, 3)) == known  # two conversations under one id
    order = {"step 1 of this conversation is the next (at conversation)"}
    assert refused(foreign, step(foreign, talk, 0, 7, 3, attempt=1)) == order
    assert refused(foreign, step(foreign, talk, 2, 5)) == order  # step 1 is left out
    stranger = {"this conversation belongs to another client (at conversation)"}
    for number, numbers in ((1, [5]), (END, [])):
        assert refused(foreign, step(foreign, talk, number, *numbers, attempt=9, claim=new_seed())) == stranger
    assert refused(foreign, step(foreign, talk, 2, 5, 6)) == {"2 words in step 2 of a conversation (at conversation)"}
    assert refused(foreign, step(foreign, talk, PLACES - PROMPT + 1, 5)) == {
        "all 12 places of this conversation are used (at conversation)"
    }
    second = step(foreign, talk, 1, 5)
    got = answers(foreign, second)
    assert answers(foreign, second) == got and answers(foreign, first) != got
    assert refused(foreign, step(foreign, talk, 1, 5)) == known
    assert refused(foreign, step(foreign, talk, 1, 5, attempt=1)) == {
        "step 2 of this conversation is the next (at conversation)"
    }
    ended = answers(foreign, step(foreign, talk, END))
    assert len(set(ended)) == 1 and len(ended[0]) == cost.ANSWER_HEADER_BYTES
    assert refused(foreign, step(foreign, talk, 2, 5, attempt=1)) == {
        "there is no such conversation: it has ended, or never begun (at conversation)"
    }


def test_a_step_with_other_words_at_another_party_does_not_run(foreign: Foreign) -> None:
    """Else the parties would hide other places: a prompt of one word at one of them, and of two at the other."""
    talk = new_seed(TALK_BYTES)
    one, two = step(foreign, talk, 0, 7), step(foreign, talk, 0, 7, 3)
    (found,) = refused(foreign, [one[0], two[1]])
    assert "got another number of images under this id" in found


def test_a_client_has_a_quarter_of_the_conversations(foreign: Foreign) -> None:
    talks = [new_seed(TALK_BYTES) for _ in range(3)]
    for talk in talks[:2]:
        answers(foreign, step(foreign, talk, 0, 1))
    crowded = {"too many conversations are open, of which a client may have 2 (at conversation)"}
    assert refused(foreign, step(foreign, talks[2], 0, 1)) == crowded
    answers(foreign, step(foreign, talks[2], 0, 1, attempt=1, claim=(other := new_seed())))  # another client may begin
    answers(foreign, step(foreign, talks[0], END))
    fresh = new_seed(TALK_BYTES)
    answers(foreign, step(foreign, fresh, 0, 1))
    for talk in (talks[1], fresh):
        answers(foreign, step(foreign, talk, END))
    answers(foreign, step(foreign, talks[2], END, claim=other))


def test_an_answer_that_is_lost_on_the_way_comes_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step ran once; a step that the parties have dropped, since the connection was lost, runs by another try."""
    real, sent, losses = PartyGroup.answers, list[list[bytes]](), ["after", "before"]

    async def lossy(self: PartyGroup, joint: Any, messages: list[bytes], results: int, timeout: float) -> Tensor:
        sent.append(messages)
        loss = losses.pop() if losses else ""
        if loss == "before":  # one party gets its part, and the client leaves it
            line = self._here().lines[joint.order[0]]
            call = line.begin("Ask", messages[0], timeout)
            await asyncio.to_thread(until, lambda: waiting(service), "a half request")
            call.cancel()
            await asyncio.to_thread(until, lambda: not waiting(service), "party 0 to drop it")
        else:
            out = await real(self, joint, messages, results, timeout)
        if loss:
            raise UnavailableError("the connection is lost")
        return out

    monkeypatch.setattr(PartyGroup, "answers", lossy)
    with service.client() as client, client.conversation() as talk:
        right(talk(vectors(7, 3)), 7, 3)
        assert sent[0] == sent[1] != sent[2]  # lost before it ran: the same bytes, and then fresh shares
        first = Request.read(sent[0][0], client.service, 0), Request.read(sent[2][0], client.service, 0)
        assert [request.id for request in first] == [step_id(talk._talk, 0), step_id(talk._talk, 0, 1)]
        del sent[:]
        losses.append("after")
        right(talk(vectors(5)), 7, 3, 5)
        assert len(sent) == 2 and sent[0] == sent[1]
        right(talk(vectors(6)), 7, 3, 5, 6)


def test_a_first_step_is_made_anew_for_parties_that_have_met_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first messages are for an earlier run of the parties, which refuse them, and would again."""
    real, joined = PartyGroup.join, list[Joined]()

    async def late(self: PartyGroup, *how: Any) -> Joined:
        joined.append(await real(self, *how))
        earlier = replace(joined[0].service, session="ab" * 16)
        return joined[-1] if len(joined) > 1 else joined[0]._replace(service=earlier)

    with service.client() as client, client.conversation() as talk:
        assert talk.prompt == PROMPT  # it has joined them
        monkeypatch.setattr(PartyGroup, "join", late)
        right(talk(vectors(7, 3)), 7, 3)
        right(talk(vectors(5)), 7, 3, 5)
    assert len(joined) > 2


# The rules of party 0 -------------------------------------------------------------------------------------------------


def held(order: Scheduler, talk: bytes, number: int, owner: int = 7) -> bytes:
    id = step_id(talk, number)
    for rank in range(2):
        order.hold(rank, id, Claim(int(number != END), owner, NEVER, 0))
    return id


def test_an_idle_conversation_ends_on_its_lane() -> None:
    order = scheduler(2, PROMPT, NEVER, alone=True, lanes=2, talks=Conversations(9, 8, 2, patience=0.3))
    talk = b"conversation"
    assert [Decision(held(order, talk, 0), Action.RUN)] == order.next(NEVER, lane=1)
    id = held(order, talk, 1)
    assert order.next(0.0, lane=0) == []  # its rows are at lane 1
    assert order.next(0.0, lane=1) == [Decision(id, Action.RUN)]
    time.sleep(0.4)
    assert order.next(0.0, lane=0) == []
    assert order.next(0.0, lane=1) == []  # the lane has been computing
    time.sleep(0.4)
    assert order.next(0.0, lane=0) == []
    assert order.next(0.0, lane=1) == [Decision(step_id(talk, END), Action.END)]
    assert [Decision(held(order, talk, 2), Action.UNKNOWN)] == order.next(NEVER, lane=0)


def test_only_a_first_step_needs_material() -> None:
    order = scheduler(2, PROMPT, NEVER, alone=True, talks=Conversations(9, 8, 8, NEVER))
    assert [Decision(held(order, b"conversation", 0), Action.RUN)] == order.next(NEVER, room=1)
    assert [Decision(held(order, b"conversation", 1), Action.RUN)] == order.next(NEVER, room=0)
    id = held(order, b"another one.", 0)
    assert order.next(NEVER, room=0) == [Decision(id, Action.LOW)]


def test_the_last_step_ends_a_conversation_and_so_does_its_client() -> None:
    order = scheduler(2, PROMPT, NEVER, alone=True, talks=Conversations(2, 1, 1, NEVER))
    for number in range(2):
        assert [Decision(held(order, b"conversation", number), Action.RUN)] == order.next(NEVER)
    assert [Decision(held(order, b"another one.", 0), Action.RUN)] == order.next(NEVER)
    assert [Decision(held(order, b"and one more", 0), Action.CROWDED, 1)] == order.next(NEVER)
    assert [Decision(held(order, b"another one.", END), Action.END)] == order.next(NEVER)


# A party --------------------------------------------------------------------------------------------------------------


class _Lists:
    """A dispatcher, at one party, of these requests, one in each list."""

    def __init__(self, rank: int, requests: Sequence[Request]) -> None:
        self._rank, self._left, self.done = rank, list(requests), list[bytes]()

    def next(self, lane: int, idle: float, room: float) -> tuple[list[Decision], bool]:
        return [Decision(self._left[0].id, Action.RUN)], len(self._left) == 1

    def take(self, lane: int, decisions: Sequence[Decision], last: bool, slots: float) -> list[Request]:
        return [self._left.pop(0)]

    def finish(self, lane: int, answers: Sequence[tuple[bytes, bytes]], images: int, padding: int) -> None:
        self.done += [answer for _, answer in answers]


def test_served_steps_cost_what_the_decoder_says() -> None:
    both = sessions(2)
    made = convert.convert_decoder(net(), torch.zeros(1, PLACES, WIDTH), PROMPT)
    served_by = [made, copy.deepcopy(made)]
    described = describe(made, None, 1, both[0], "ab" * 16)
    models = [Models(s, "", fixed=ServedModel(p, described)) for s, p in zip(both, served_by, strict=True)]
    workers = together([lambda m=m, s=s: Worker(m, s) for m, s in zip(models, both, strict=True)])
    talk, texts = new_seed(TALK_BYTES), [vectors(7, 3), vectors(5), vectors(6)]
    parts: list[list[Request]] = [[], []]
    for number, words in enumerate(texts):
        for rank, body in enumerate(Question(ring.encode(words)).bodies(described)):
            parts[rank].append(Request(step_id(talk, number), bytes(16), 0, len(words), body, described.digest))
    lists = [_Lists(rank, requests) for rank, requests in enumerate(parts)]
    with meter.meter() as counted:
        together([lambda w=w, d=d: w.run(d) for w, d in zip(workers, lists, strict=True)])
    said = sum((row.cost for number in range(3) for row in made.costs(number, 2)), FREE) * 2
    said += sum((cost.ordering(2, 1, first) for first in (True, False)), FREE) * 3
    total = counted.total
    assert (total.rounds, total.bits_sent, total.offline_bits) == (said.rounds, said.bits, said.offline_bits)
    assert [len(each.done) for each in lists] == [3, 3]
    for session in both:
        session.channel.close()


def test_a_party_never_runs_a_step_twice_whatever_party_0_orders() -> None:
    session = sessions(2)[0]
    made = convert.convert_decoder(net(), torch.zeros(1, PLACES, WIDTH), PROMPT)
    steps, model = Steps(made, session, lambda *_: None), ServedModel(made, describe(made, None, 1, session, "ab" * 16))
    for number in (1, PLACES - PROMPT):
        steps.add(model, [step_id(b"conversation", number)], [torch.zeros(1, WIDTH, dtype=torch.int64)])
        with pytest.raises(
            AgreementError, match=f"party 0 orders step {number} of a conversation whose next step is 0"
        ):
            steps.run()


def test_what_cannot_be_served_is_refused() -> None:
    session = sessions(2)[0]
    made = convert.convert_decoder(net(), torch.zeros(1, PLACES, WIDTH), PROMPT)
    with pytest.raises(InputError, match="a shape or a table beside a decoder"):
        describe(made, (PLACES, WIDTH), 1, session, "ab" * 16)
    with pytest.raises(InputError, match="the shape of one image is needed"):
        describe(convert.build(torch.nn.Sequential(torch.nn.Linear(4, 2))), None, 1, session, "ab" * 16)
    made.input_range = 0.5
    assert describe(made, None, 1, session, "ab" * 16).limit == 0.5  # a client refuses larger values
    made.places = 1 << 16
    with pytest.raises(ConfigError, match="conversations of 65536 places"):
        describe(made, None, 1, session, "ab" * 16)
