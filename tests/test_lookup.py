"""Private lookups that feed a private net: exact rows, prices, logits, and what becomes of deposits that go wrong."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird import convert, cost, ring
from hummingbird.cost import Cost
from hummingbird.errors import AgreementError, ConfigError, InputError, PeerError
from hummingbird.lookup import Asked, Lookups
from hummingbird.mpc import launch
from hummingbird.mpc import session as sessions
from hummingbird.mpc._crypten import scale_of, share_of
from hummingbird.mpc.session import Session
from hummingbird.pir import Client, Server, Source, dpf, local_servers
from hummingbird.pir.messages import pack_deposit
from hummingbird.wire import meter
from hummingbird.wire.meter import Meter
from scripts import recommend
from tests.support import parties
from tests.support.nursery import Nursery, Party, alive, error_of
from tests.support.patience import HANG

ROWS, DIM = 1100, 4
TABLE = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))
CODE = ring.encode(TABLE)
SOURCE = Source.of(TABLE).for_shares()

Part = Callable[[Session, Server], Any]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Any]]]:
    """run(part, servers): part(session, server) at both parties, which are threads; their results."""
    here, opened = threading.local(), parties.sessions(2)

    def run(part: Part, servers: Sequence[Server]) -> list[Any]:
        def call(rank: int) -> Any:
            here.session = opened[rank]
            return part(opened[rank], servers[rank])

        return parties.together([lambda rank=rank: call(rank) for rank in range(2)])

    with launch.stand_in(opened[0]):  # for CrypTen, which wants to know of a session in this process
        monkeypatch.setattr(sessions, "current", lambda: here.session)
        yield run
    for session in opened:
        session.channel.close()


def unequal(m: Meter) -> list[str]:
    """Layers whose rounds or bits are not what was predicted; threads share a meter, so of both parties together."""
    return [
        row.layer
        for row in m.rows.values()
        if (row.rounds, row.bits_sent) != (row.rounds_predicted, row.bits_predicted)
        or row.offline_bits * 2 != row.offline_bits_predicted  # party 0 alone gets what is predicted for both
    ]


def opened(asked: Sequence[Asked]) -> Tensor:
    """Ring elements of the private tensors that both parties hold."""
    return share_of(asked[0].x) + share_of(asked[1].x)


# The protocol ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [SOURCE, Source.of(TABLE.half()).for_shares()], ids=["float32", "float16"])
def test_rows_are_the_tables_exactly(both, source: Source) -> None:
    """A product of integers, so there is no error to allow for."""
    indices = torch.tensor([0, 1, 1023, 1024, ROWS - 1, 7, 7, 7])
    servers = local_servers(source)
    Client(servers).deposit(indices)
    with meter.meter() as m:
        asked = both(lambda session, server: Lookups(server, (1,)).next(), servers)
    code = ring.encode(TABLE.half() if source is not SOURCE else TABLE)
    assert torch.equal(opened(asked), code[indices]) and not torch.equal(opened(asked), code[indices - 1])
    assert [scale_of(one.x) for one in asked] == [ring.SCALE] * 2
    assert not torch.equal(share_of(asked[0].x), code[indices])
    assert unequal(m) == [] or set(unequal(m)) == {"(outside)"}  # the two words that the parties agree on first
    # Each party sends what its product opens, n factors and n rows; party 0 gets the masks' product from the dealer.
    assert m.rows["lookup.rows"].bits_sent == 2 * 8 * (cost.HEADER_BYTES + 8 * len(indices) * (1 + DIM))
    assert m.rows["lookup.rows"].offline_bits == 64 * len(indices) * DIM


def test_bags_with_weights(both) -> None:
    """The sums of products of integers, cut by 16 bits: exact to one unit."""
    bags, questions = (1, 3, 2), 5
    indices = torch.arange(questions * 6) * 31 % ROWS
    weights = torch.randn(questions * 6, generator=torch.Generator().manual_seed(1))
    servers = local_servers(SOURCE)
    Client(servers, prf="chacha12").deposit(indices.int(), weights)

    def part(session: Session, server: Server) -> tuple[Asked | None, dict[str, Cost]]:
        lookups = Lookups(server, bags, weighted=True)
        return lookups.next(), lookups.costs(questions)

    with meter.meter() as m:
        asked, costs = zip(*both(part, servers), strict=True)
    products = (ring.encode(weights)[:, None] * CODE[indices]).view(questions, 6, DIM)
    sums = torch.cat([part.sum(1) for part in products.split(bags, 1)], 1)
    assert opened(asked).shape == (questions, len(bags) * DIM)
    assert set((opened(asked) - (sums >> 16)).flatten().tolist()) <= {0, 1}
    assert set(unequal(m)) <= {"(outside)"}
    for name, one in costs[0].items():  # the price of a deposit, which is known before it comes
        row, other = m.rows[name], costs[1][name]
        assert (row.rounds, row.bits_sent) == (one.rounds + other.rounds, one.bits + other.bits)
        assert row.offline_bits == one.offline_bits == other.offline_bits
    assert sum(one.rounds for one in costs[0].values()) == 4
    assert float((ring.decode(opened(asked)) - ring.decode(sums, 32)).abs().max()) > 0  # it can fail


def fixed(x: Tensor) -> Tensor:
    """Real numbers as fixed point holds them."""
    return ring.encode(x).double() / 2**ring.SCALE


def private_result(net: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """The result of a net of Linear and ReLU on fixed-point inputs, and how far the private one may be from it.

    Its numbers are rounded here, too, and products and sums are exact; so errors come from the cuts to 16 bits alone,
    one unit of an input that was a product, and at most two of a layer's result (one, and one of shares that are cut
    each on its own). A layer passes them on times |W|.
    """
    unit = 2.0**-ring.SCALE
    error = torch.full_like(x, unit)
    for layer in net:
        if isinstance(layer, nn.Linear):
            weight = fixed(layer.weight)
            x, error = x @ weight.T + fixed(layer.bias), error @ weight.abs().T + 2 * unit
        else:
            x = layer(x)
    return x, error


def test_logits_reach_the_client(both) -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(2 * DIM, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    private = [convert.build(net) for _ in range(2)]
    servers, indices = local_servers(SOURCE), torch.arange(40, 40 + 2 * 5)
    client = Client(servers)
    tickets = [client.deposit(indices), client.deposit(indices.flip(0))]
    with meter.meter() as m:
        both(lambda session, server: Lookups(server, (1, 4)).serve(private[session.rank], deposits=2), servers)
    assert set(unequal(m)) <= {"(outside)"}, m.table()
    for ticket, asked in zip(tickets, (indices, indices.flip(0)), strict=True):
        rows = fixed(TABLE[asked]).view(2, 5, DIM)
        expected, allowed = private_result(net, torch.cat([rows[:, 0], rows[:, 1:].sum(1)], 1))
        error = (client.collect(ticket) - expected).abs()
        assert bool((error <= allowed).all()) and float(allowed.max()) < 0.001 * float(expected.abs().max()), error
        with pytest.raises(PeerError, match="there is no deposit"):  # for one use
            client.collect(ticket)


def test_what_a_server_sees_has_the_same_shape_whatever_is_asked() -> None:
    """Sizes, order and number of messages; and one server's shares are not the values."""

    class Spying(Server):
        def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
            finish = super().begin(message, method)

            def answer() -> bytes:
                result = finish()
                self.seen.append((method, len(message), len(result)))
                return result

            return answer

    seen = []
    for indices, weights in (
        (torch.zeros(6, dtype=torch.int64), torch.zeros(6)),
        (torch.arange(6), torch.ones(6)),
        (torch.full((6,), ROWS - 1), torch.tensor([1e-4, -7.0, 0.0, 1e3, 2.5, -1.0])),
    ):
        servers = [Spying(SOURCE, party) for party in range(2)]
        for server in servers:
            server.seen = []
        ticket = (client := Client(servers)).deposit(indices, weights)
        parts = [server.take(ticket, 0) for server in servers]
        for server in servers:
            server.publish(ticket, torch.zeros(1, 2, dtype=torch.int64))
        client.collect(ticket)
        seen.append([server.seen for server in servers])
        signs = (parts[0].factors + parts[1].factors)[weights != 0].sign()
        assert all(part.weighted for part in parts) and len(set(signs.tolist())) <= 2
        for part in parts:  # 64 random bits each: below 2^40, once in 2^23 tries
            assert int(part.factors.abs().min()) > 1 << 40
    assert seen[0] == seen[1] == seen[2]
    assert [method for method, _, _ in seen[0][0]] == ["Describe", "Deposit", "Collect"]


# What goes wrong ------------------------------------------------------------------------------------------------------


def half_deposits(servers: Sequence[Server], at: int, client: Client, ticket: bytes, count: int = 2) -> None:
    """A deposit that reaches one server only."""
    keys = dpf.generate(torch.arange(count), ROWS)[at]
    servers[at].deposit(pack_deposit(ticket, client._receipt(ticket, at), keys))


def test_a_deposit_at_one_server_only_is_dropped(both, caplog: pytest.LogCaptureFixture) -> None:
    servers = local_servers(SOURCE)
    client, ticket = Client(servers), bytes(range(16))
    half_deposits(servers, 0, client, ticket)
    good = client.deposit(torch.arange(2))

    def part(session: Session, server: Server) -> list[Asked | None]:
        lookups = Lookups(server, (1,), patience=0.1)
        return [lookups.next(), lookups.next()]

    (none, asked), (other, _) = both(part, servers)
    assert none is other is None and asked.ticket == good  # in the order of their arrival, and the next one is served
    assert "deposit 00010203 is dropped: server 1 has not received this deposit within 0.1 s" in caplog.text
    with pytest.raises(PeerError, match=r"server 1 has not received(.|\n)*no deposit 00010203"):
        client.collect(ticket)
    with pytest.raises(InputError, match="for one use"):  # too late at the other server
        half_deposits(servers, 1, client, ticket)


def test_a_deposit_at_party_1_only_is_forgotten(both, caplog: pytest.LogCaptureFixture) -> None:
    servers = local_servers(SOURCE)
    client, ticket = Client(servers), bytes(range(16))
    servers[1]._deposits.keep = 0.05
    half_deposits(servers, 1, client, ticket)
    time.sleep(0.06)
    assert both(lambda session, server: Lookups(server, (1,)).next(0.01), servers) == [None, None]
    with pytest.raises(PeerError, match="there is no deposit 00010203"):
        client.collect(ticket)
    assert "deposit 00010203 is dropped: nobody took it within 0.05 s" in caplog.text


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ((3, None), (3, None), "a question is 2 lookups without weights, in bags of .2,."),
        ((2, 1.0), (2, 1.0), "a question is 2 lookups without weights"),
        ((2, None), (4, None), "have received different deposits"),
        ((2, None), (2, 1.0), "have received different deposits"),
    ],
)
def test_deposits_that_fit_no_question_are_refused(both, first, second, what: str) -> None:
    servers, ticket = local_servers(SOURCE), bytes(16)
    client = Client(servers)
    for party, (count, weight) in enumerate((first, second)):
        keys = dpf.generate(torch.arange(count), ROWS)[party]
        factors = None if weight is None else torch.full((count,), 5)
        servers[party].deposit(pack_deposit(ticket, client._receipt(ticket, party), keys, factors))
    assert both(lambda session, server: Lookups(server, (2,)).next(), servers) == [None, None]
    with pytest.raises(PeerError, match=what):
        client.collect(ticket)


def test_parties_that_differ_are_told_so(both) -> None:
    with pytest.raises(AgreementError, match=r"bags: party \d has \(\d,\), party \d has"):
        both(lambda session, server: Lookups(server, (1 + session.rank,)), local_servers(SOURCE))
    other = Source.of(TABLE + 1).for_shares()
    with pytest.raises((AgreementError, PeerError), match="contents: "):
        both(lambda session, server: Lookups(server, (1,)), [Server(SOURCE, 0), Server(other, 1)])


def test_what_lookups_cannot_be_made_of(both) -> None:
    def refused(server: Server, what: str, *args: Any, **options: Any) -> None:
        with pytest.raises(ConfigError, match=what):
            Lookups(server, *args, **options)

    def part(session: Session, server: Server) -> None:
        refused(Server(SOURCE, 1 - session.rank), "party . of 2 with server .", (1,))
        refused(Server(TABLE, session.rank), "of 1,100 rows of 4 float32", (1,))
        for bags in ((), (0,), (2, -1), (1.0,)):
            refused(server, "bags of", bags)
        refused(server, "a patience of", (1,), patience=1e9)

    both(part, local_servers(SOURCE))


def test_weights_that_cannot_be_given() -> None:
    client = Client(local_servers(SOURCE))
    for weights in (torch.ones(3), [1.0, 2.0], torch.tensor([1, 2]), torch.tensor([1.0, float("nan")])):
        with pytest.raises(InputError, match=r"one weight|floating-point|NaN"):
            client.deposit(torch.arange(2), weights)


def test_a_net_that_fails_is_told_to_the_client(both) -> None:
    servers = local_servers(SOURCE)
    ticket, net = (client := Client(servers)).deposit(torch.arange(2)), nn.Linear(DIM + 1, 2)

    def part(session: Session, server: Server) -> None:
        with pytest.raises(InputError, match="cannot take an input of shape"):
            Lookups(server, (2,)).serve(convert.build(net))

    both(part, servers)
    with pytest.raises(PeerError, match=r"neither server answers: .*'s session has failed"):
        client.collect(ticket)


def test_stopping_at_either_party_ends_both(both) -> None:
    for who in range(2):

        def part(session: Session, server: Server, who: int = who) -> None:
            lookups = Lookups(server, (1,))
            if session.rank == who:
                threading.Timer(0.1, lookups.stop).start()
            lookups.serve(lambda x: x)

        both(part, local_servers(SOURCE))


# Processes ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def recommenders(nursery: Nursery) -> Iterator[tuple[list[str], list[Party]]]:
    """Both parties and their dealer, as processes: what the user's program needs to know, and the parties."""
    number = nursery.count
    dealer = nursery.fork(["deal", ""], 0, 1, 1, DEALER=f"unix:{nursery.folder}/d{number}")
    common = ["--synthetic", "--servers", *(f"unix:{nursery.folder}/{number}p{party}" for party in range(2))]
    dealer.until("listening")
    opened = nursery.start(["recommend", *common, "--dealer", dealer.variables["DEALER"]], 2)
    try:
        yield common, opened
    finally:
        for process in (dealer, *opened):
            if alive(process.pid):
                os.kill(process.pid, signal.SIGKILL)
        dealer.wait()


def test_a_recommender_from_end_to_end(nursery: Nursery, capsys: pytest.CaptureFixture[str]) -> None:
    """The user is here: its program, and a client of its own, whose logits are held to what fixed point allows."""
    with recommenders(nursery) as (common, processes):
        assert recommend.main(["--user", *common, "--question", "3", "--count", "2", "--timeout", f"{HANG:g}"]) == 0
        told = capsys.readouterr().out
        assert told.count("made up") == 2 and "128 lookups and the net: " in told
        difference = float(re.search("largest difference of a logit: (.*)", told)[1])
        args = recommend.parser().parse_args([*common, "--question", "3", "--count", "2"])
        net, asked = recommend.build(args), recommend.questions(args, 500)
        vectors, weights = fixed(net.items(asked.wanted)), fixed(asked.weights)
        x = torch.cat([vectors[:, 0], (vectors[:, 1:] * weights[..., None]).sum(1)], 1)
        expected, allowed = private_result(net.mlp, x)
        client = Client(args.servers, timeout=HANG)
        weights = torch.cat([torch.ones(2, 1), asked.weights], 1)
        logits = client.collect(client.deposit(asked.wanted.flatten(), weights.flatten()))
        assert bool(((logits - expected).abs() <= allowed).all())
        assert float(allowed.max()) < 0.1 * float(expected.abs().max()) and difference < float(allowed.max())
        with pytest.raises(PeerError, match="a question is 64 lookups with weights"):
            client.collect(client.deposit(torch.arange(64)))
        client.close()
        os.kill(processes[1].pid, signal.SIGTERM)  # at either party: both end in order
        assert [process.wait() for process in processes] == [0, 0], [p.err.read_text() for p in processes]
        printed = processes[0].out.read_text()
        assert "party 0 listens on unix:" in printed and "lookup.rows" in printed and "501 rows of 32" in printed


def test_a_party_that_dies_while_a_user_waits(nursery: Nursery) -> None:
    with recommenders(nursery) as (common, processes):
        client = Client(common[-2:], timeout=HANG)
        ticket, link = os.urandom(16), client.links[0]
        keys = dpf.generate(torch.arange(64), 501)[0]
        link.begin(pack_deposit(ticket, client._receipt(ticket, 0), keys), "Deposit")()
        waiting = link.begin(ticket + client._receipt(ticket, 0), "Collect")
        time.sleep(0.2)  # now party 1 waits for its half
        os.kill(processes[1].pid, signal.SIGKILL)
        with pytest.raises(PeerError, match=r"server 0 \(unix:.*p0\)"):
            waiting()
        with pytest.raises(PeerError, match=r"server 1 \(unix:.*p1\)"):
            client.deposit(torch.arange(64))
        client.close()
        assert "party 1 closed the connection" in error_of(processes[0], processes[0].wait())
        assert processes[1].wait() == -signal.SIGKILL
