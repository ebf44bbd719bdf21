"""Batch codes, profiles, plans and prices: who gets a key, what it brings, and what it costs."""

from __future__ import annotations

import itertools
import math
from dataclasses import astuple
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from hummingbird.errors import ConfigError, InputError
from hummingbird.kernels import lookups
from hummingbird.pir.batching import access_stats, batch_code
from hummingbird.pir.batching.batch_code import Assignment, BatchCode
from hummingbird.pir.batching.cost_model import Speed, blocks, pareto, price
from hummingbird.pir.batching.plan import Plan

SIZES = (1, 2, 3, 5, 64, 1000, 1024, 4097)


def sampled(rows: int, count: int, seed: int) -> Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[:count]


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("choices", [1, 3])
def test_every_row_is_where_places_says_and_nothing_else_is_there(rows: int, choices: int) -> None:
    for group in {1, min(4, rows), rows}:
        code = BatchCode(rows, choices * group, choices, seed=b"some public seed")
        layout, everything = code.layout(), torch.arange(rows)
        assert layout.shape == (code.buckets, code.bucket_rows) and code.bucket_rows == -(-rows // group)
        buckets, inside = code.places(everything)
        assert (layout[buckets, inside] == everything[:, None]).all()
        assert sorted(layout[layout >= 0].tolist()) == sorted(everything.tolist() * choices)
        assert (buckets // group == torch.arange(choices)).all()  # the choices of a row are different buckets
        assert [int(b) for b in (layout >= 0).sum(1)].count(
            code.bucket_rows
        ) >= choices  # no bucket is larger than it must


def test_choices_are_independent_and_seeds_matter() -> None:
    """Rows that share a bucket of one group spread over those of another, as well as chance would have it."""
    code = BatchCode(4096, 48)
    buckets, _ = code.places(torch.arange(4096))
    for first, second in itertools.combinations(range(3), 2):
        together = torch.zeros(16, 16).index_put_(
            (buckets[:, first] % 16, buckets[:, second] % 16), torch.ones(4096), True
        )
        # 256 cells of 16 rows each: chi squared with 225 degrees of freedom has mean 225 and deviation sqrt(450).
        assert abs(float(((together - 16) ** 2 / 16).sum()) - 225) < 6 * math.sqrt(450)
    other, _ = BatchCode(4096, 48, seed=b"another, public!").places(torch.arange(4096))
    assert 0.01 < float((buckets == other).double().mean()) < 0.12  # one in 16 by chance


def test_large_tables_have_the_same_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    code, rows = BatchCode(5000, 30), sampled(5000, 100, 0)
    kept = code.places(rows)
    monkeypatch.setattr(batch_code, "_KEPT", 1)
    assert all(torch.equal(one, other) for one, other in zip(kept, code.places(rows), strict=True))


def rank(choices: list[list[int]], rounds: int) -> int:
    """The most rows that can be placed, by trying everything."""
    best = 0
    for picked in itertools.product(*([None, *row] for row in choices)):
        taken = [bucket for bucket in picked if bucket is not None]
        if all(taken.count(bucket) <= rounds for bucket in taken):
            best = max(best, len(taken))
    return best


@pytest.mark.parametrize(("choices", "buckets", "rounds"), [(3, 6, 1), (3, 3, 1), (1, 4, 1), (1, 2, 2), (1, 1, 3)])
def test_earlier_rows_come_first_and_as_many_as_possible_are_placed(choices: int, buckets: int, rounds: int) -> None:
    """A row is placed exactly if it can be beside all those placed before: the rank of the prefix grows with it."""
    dropped = 0
    for seed in range(12):
        code = BatchCode(40, buckets, choices, rounds, seed=bytes([seed] * 16))
        wanted = sampled(40, 6, seed)
        where = code.places(wanted)[0].tolist()
        ranks = [rank(where[:count], rounds) for count in range(7)]
        assert [bool(key >= 0) for key in code.schedule(wanted).key] == [b > a for a, b in itertools.pairwise(ranks)]
        dropped += 6 - ranks[-1]
    assert dropped or buckets == 6


@pytest.mark.parametrize("code", [BatchCode(5000, 30), BatchCode(5000, 12, 1), BatchCode(5000, 6, 1, 3)])
def test_keys_bring_the_rows_that_the_schedule_says(code: BatchCode) -> None:
    layout = code.layout()
    for seed, count in enumerate((0, 1, 7, 20, 60)):
        wanted = sampled(5000, count, seed).repeat(2)  # everything twice
        inside, key = code.schedule(wanted)
        assert inside.shape == (code.keys,) and bool(((inside >= 0) & (inside < code.bucket_rows)).all())
        found = key >= 0
        assert (layout[key[found] // code.rounds, inside[key[found]]] == wanted[found]).all()
        assert torch.equal(key[:count], key[count:])
        placed = key[:count][key[:count] >= 0]
        assert len(placed.unique()) == len(placed)
        assert (inside[[k for k in range(code.keys) if k not in placed.tolist()]] == 0).all()


def test_nearly_all_rows_find_a_bucket_of_the_cuckoo_code_and_two_thirds_a_bin() -> None:
    """The rates of the documentation: 1.5 k buckets, 99.97 % and more; b = k bins, 1 - 1/e."""
    for wanted, times in ((8, 250), (16, 150), (64, 40), (256, 10)):
        found = bins = 0
        cuckoo, partial = BatchCode.cuckoo(20000, wanted), BatchCode(20000, wanted, 1)
        for seed in range(times):
            rows = sampled(20000, wanted, seed)
            found += int((cuckoo.schedule(rows).key >= 0).sum())
            bins += int((partial.schedule(rows).key >= 0).sum())
        assert found / (wanted * times) >= 0.9997
        # A bin is empty with (1 - 1/b)^k; full ones vary less than independent ones would, 1/e (1 - 1/e) = 0.2326 each.
        expected, variance = 1 - (1 - 1 / wanted) ** wanted, times * wanted * 0.2326
        assert abs(bins - expected * wanted * times) < 5 * math.sqrt(variance)


def test_wrong_codes_and_wanted_rows_are_errors() -> None:
    for wrong in ({"buckets": 4}, {"buckets": 0}, {"rounds": 0}, {"buckets": 33}, {"rows": 0}, {"choices": 0}):
        with pytest.raises(ConfigError, match="BatchCode"):
            BatchCode(**{"rows": 10, "buckets": 6, **wrong})
    code = BatchCode(10, 6)
    for wanted in (torch.tensor([10]), torch.tensor([-1]), torch.tensor([1], dtype=torch.int32), torch.tensor([[1]])):
        with pytest.raises(InputError, match="wanted") as caught:
            code.schedule(wanted)
        assert "-1" not in str(caught.value) and "10" not in str(caught.value)  # no index in a log
    assert BatchCode.cuckoo(5, 100).buckets == 15  # no more buckets of a group than rows


def test_profiles_count_what_was_wanted_together() -> None:
    accesses = [torch.tensor(rows).long() for rows in ([0, 1, 1, 2], [1, 2], [2, 3, 1], [4], [])]
    counts = access_stats.frequencies(accesses, 6)
    assert counts.tolist() == [1, 3, 3, 1, 1, 0]  # each inference counts once
    assert access_stats.hottest(counts, 0.5).tolist() == [1, 2, 0]
    assert access_stats.hottest(counts, 0).tolist() == []
    beside = access_stats.companions(accesses, 6, 2)
    assert beside.tolist() == [[1, 2], [2, 0], [1, 0], [1, 2], [-1, -1], [-1, -1]]
    with pytest.raises(InputError, match="hot share"):
        access_stats.hottest(counts, 1.0)


def test_companions_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    accesses = [sampled(50, 8, seed) for seed in range(60)]
    whole = access_stats.companions(accesses, 50, 4)
    monkeypatch.setattr(access_stats, "_PAIRS", 100)
    assert torch.equal(whole, access_stats.companions(accesses, 50, 4))
    pairs = torch.zeros(50, 50, dtype=torch.int64)
    for rows in accesses:
        pairs[rows[:, None], rows] += 1
    pairs.fill_diagonal_(0)
    assert torch.equal(whole, pairs.argsort(dim=1, descending=True, stable=True)[:, :4])


@lru_cache
def plans(rows: int) -> list[Plan]:
    generator = torch.Generator().manual_seed(5)
    accesses = [(torch.rand(20, generator=generator) ** 3 * rows).long() for _ in range(60)]
    hot = access_stats.hottest(access_stats.frequencies(accesses, rows), 0.1)
    beside = access_stats.companions(accesses, rows, 3)
    hot_code = BatchCode.cuckoo(len(hot), 8)
    return [
        Plan(BatchCode.cuckoo(rows, 12)),
        Plan(BatchCode(rows, 6, 1, 2), companions=beside),
        Plan(BatchCode(rows, 9), hot_code, hot),
        Plan(BatchCode(rows, 9), BatchCode(len(hot), 5, 1), hot, beside),
    ]


@pytest.mark.parametrize("number", range(4))
def test_a_plan_brings_what_it_says_and_drops_the_rest(number: int) -> None:
    rows = 3000
    plan = plans(rows)[number]
    layouts = plan.layouts()
    generator = torch.Generator().manual_seed(6)
    brought_by_companions = dropped = 0
    for count in (0, 1, 5, 30, 30, 30, 60):
        wanted = (torch.rand(count, generator=generator) ** 3 * rows).long()
        inside, key, part = plan.look_up(wanted)
        assert inside.shape == (plan.keys,) and key.shape == part.shape == wanted.shape
        splits = inside.split([code.keys for code in plan.codes])
        records = torch.cat(
            [
                layout[torch.arange(code.keys) // code.rounds, places]
                for code, layout, places in zip(plan.codes, layouts, splits, strict=True)
            ]
        )
        found = key >= 0
        assert (records[key[found], part[found]] == wanted[found]).all()
        assert not set(wanted[~found].tolist()) & set(wanted[found].tolist())
        brought_by_companions += int((part[found] > 0).sum())
        dropped += int((~found).sum())
    assert dropped > 0 and (brought_by_companions > 0) == (plan.companions is not None)


def test_an_overflow_of_the_hot_table_goes_to_the_full_one() -> None:
    hot = torch.arange(100, 160)
    plan = Plan(BatchCode(1000, 30), BatchCode(60, 3), hot)
    _, key, _ = plan.look_up(hot[:10])
    assert int((key >= 0).sum()) == 10
    assert int((key[key >= 0] < 3).sum()) == 3  # as many as the hot table has keys
    with pytest.raises(ConfigError, match="hot rows"):
        Plan(BatchCode(1000, 30), BatchCode(50, 3), hot)
    with pytest.raises(ConfigError, match="companions"):
        Plan(BatchCode(1000, 30), companions=torch.zeros(10, 2, dtype=torch.int64))


def test_prices_are_those_of_keys_and_records() -> None:
    plan = plans(3000)[2]
    cost = price(plan.codes, 64)
    assert cost.keys == plan.keys
    assert cost.up == 2 * sum(code.keys * lookups.key_bytes(code.bucket_rows) for code in plan.codes)
    assert cost.down == 2 * 64 * plan.keys and cost.bytes == cost.up + cost.down
    assert cost.rows == sum(code.keys * code.layout().shape[1] for code in plan.codes)
    assert cost.read == 64 * cost.rows
    assert cost.messages == len(plan.codes) and cost.buckets == sum(code.buckets for code in plan.codes)
    two = price([BatchCode(1000, 10, 1, 2)], 64)
    assert (two.keys, two.buckets, two.held, two.read) == (20, 10, 64 * 1000, 2 * 64 * 1000)
    for rows in (1, 1024, 1025, 2048, 5000, 70000, 1 << 20):
        leaves, above = -(-rows // 1024), 0
        level = leaves
        while level > 1:  # from the leaves up: a node for every two below it
            level = -(-level // 2)
            above += level
        assert blocks(rows) == 2 * above + 8 * leaves


def test_the_speed_model_finds_what_made_its_measurements() -> None:
    true = Speed(5e-5, 1e-6, 1e-11, 2e-6, 3e-8, 1e-11, 5e-10)
    shapes = [(1, 8, 64), (1, 64, 384), (8, 1, 1536), (8, 2, 64), (32, 1, 384), (96, 1, 64), (2, 32, 1536), (300, 1, 8)]
    prices = [price([BatchCode(1 << 14, buckets, 1, rounds)], width) for buckets, rounds, width in shapes]
    fitted = Speed.fit([(cost, true.seconds(cost)) for cost in prices])
    assert astuple(fitted) == pytest.approx(astuple(true), rel=1e-6)
    slower = [(cost, 1e-9 * cost.keys + 1e-3) for cost in prices]  # explained best by a negative coefficient
    assert min(astuple(Speed.fit(slower))) >= 0
    with pytest.raises(InputError, match="measurements"):
        Speed.fit([(prices[0], 1.0)] * 6)


def test_pareto_keeps_what_nothing_beats() -> None:
    generator = torch.Generator().manual_seed(2)
    points = torch.randint(6, (60, 3), generator=generator).tolist()
    kept = pareto(points)
    for number, point in enumerate(points):
        beaten = any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points)
        assert (number in kept) == (not beaten and points.index(point) == number)


def test_as_many_rows_as_keys_are_placed_where_far_more_are_wanted() -> None:
    code = BatchCode(5000, 60)
    rows = sampled(5000, 400, 1).tolist()
    assignment = Assignment(code, rows)
    assert sum(assignment.place(number) for number in range(len(rows))) == code.keys
