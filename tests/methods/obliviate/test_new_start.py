"""The new start: contamination, the map, and rows from pairs and from windows, each against plain loops."""

import functools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn.methods.obliviate import new_start
from recbole_unlearn.methods.obliviate.windows import WindowLinks, learn_windows
from recbole_unlearn.rows import OTHER, SIDES, Members, TrainIndex, rarest
from tests.parts import Rows, region_of, rest_of


def rows_of(pairs, gone, users=8, items=9):
    """An index of ``pairs``, what is left of it without the pairs ``gone``, and their region."""
    index = TrainIndex(Rows(pairs, users=users, items=items))
    return index, *rest_of(index, torch.tensor([pair in gone for pair in pairs]))


def test_contamination_falls_from_hop_to_hop():
    """User 1 deletes one of three; items 1 and 2 are theirs, of two and of four users; user 5 is far away."""
    pairs = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 2), (4, 2), (3, 4), (5, 4), (5, 5)]
    _, retained, touched = rows_of(pairs, [(1, 3)])
    region = new_start.spread(touched, retained, 0.0)
    level = {side: dict(zip(m.ids.tolist(), m.share.tolist(), strict=True)) for side, m in region.items()}
    assert level["user"][1] == 1.0  # who asked starts again
    assert level["item"][3] == 1.0  # lost all it had
    assert (level["item"][1], level["item"][2]) == (pytest.approx(1 / 2), pytest.approx(1 / 4))
    assert level["user"][2] == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert (level["user"][3], level["user"].get(5, 0.0)) == (pytest.approx((1 / 4 + 0) / 2), 0.0)
    near = new_start.spread(touched, retained, 0.3)
    assert near["user"].ids.tolist() == [1]  # what is below the reach is not passed on
    assert near["item"].ids.tolist() == [1, 3]
    assert new_start.spread(touched, retained, 1.0)["item"].ids.tolist() == [3]


def draws(seed):
    """``draws(seed)(rows, columns)``: normal numbers of double precision."""
    return functools.partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def told_of(index, side, ids, table, centre, deleted=None):
    """The features of rows written out, link by link; without ``deleted`` ones where that is given."""
    found = []
    for k in ids:
        mine = index.ids[side] == k
        mine &= ~deleted if deleted is not None else mine
        rows = table[index.ids[OTHER[side]][mine]]
        found.append(features_by_formula(mean_of(rows, table.shape[1]) - centre, len(rows)))
    return torch.stack(found)


def mean_of(rows, width):
    return sum(rows, torch.zeros(width, dtype=torch.float64)) / max(1, len(rows))


def features_by_formula(mean, number):
    mean, count = (mean, number) if number else (torch.zeros_like(mean), 1)
    last = torch.tensor([math.sqrt(count), math.log(count), 1.0], dtype=mean.dtype)
    return torch.cat([math.sqrt(count) * mean, math.log(count) * mean, mean, last])


def test_the_map_is_found(monkeypatch):
    monkeypatch.setattr(new_start, "RIDGE", 1e-14)
    users, items, d = 200, 90, 3
    generator = torch.Generator().manual_seed(1)
    orders = (torch.randperm(items - 1, generator=generator)[: 3 + user % 40] for user in range(1, users))
    pairs = [(user, item) for user, order in enumerate(orders, 1) for item in (order + 1).tolist()]
    index, randn = TrainIndex(Rows(pairs, users=users, items=items)), draws(1)
    tables, transform = {"user": torch.zeros(users, d).double(), "item": randn(items, d)}, randn(3 * d + 3, d)
    told = told_of(index, "user", range(1, users), tables["item"], tables["item"][1:].mean(dim=0))
    tables["user"][1:] = told @ transform
    maps = new_start.learn_pairs(tables, index, torch.Generator().manual_seed(0))
    assert torch.allclose(maps.transform["user"], transform, atol=1e-5)
    counts = index.counts("user", torch.arange(users)).double()
    assert torch.allclose(maps.centre["user"], (counts[:, None] * tables["user"]).sum(0) / counts.sum())


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_what_is_added_up_is_the_formula_written_out(seed, rounds):
    generator = torch.Generator().manual_seed(seed)
    users, items, d = 12, 10, 2
    keep = torch.rand(users, items, generator=generator) < 0.5
    pairs = [(u, i) for u in range(1, users) for i in range(1, items) if keep[u, i]] or [(1, 1)]
    index = TrainIndex(Rows(pairs, users=users, items=items))
    deleted = torch.rand(len(index), generator=generator) < 0.2
    retained, touched = rest_of(index, deleted)
    region, sizes = new_start.spread(touched, retained, 0.05), {"user": users, "item": items}
    randn = draws(seed)
    tables = {side: randn(n, d) for side, n in sizes.items()}
    # a map that contracts: all rounds count
    transform, centre = {side: 0.03 * randn(3 * d + 3, d) for side in sizes}, {side: randn(d) for side in sizes}
    maps = new_start.Maps(transform, centre, {"user": 30.0, "item": 9.0}, torch.zeros(d, dtype=torch.float64), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_start, "even", lambda moves, sources: moves)
        links_of = functools.partial(new_start.PairLinks, retained.index, tables)
        start = new_start.NewStart(tables, maps, touched, (region, links_of, retained))
        found = start.moves(rounds)
    now, middle = {side: table.clone() for side, table in tables.items()}, dict(centre)
    for side in ["user"] + ["item", "user"] * rounds:
        other, ids = OTHER[side], region[side].ids.tolist()
        if not ids:
            continue
        old = told_of(index, side, ids, tables[other], centre[other]) @ transform[side]
        told = told_of(index, side, ids, now[other], middle[other], deleted) @ transform[side]
        moved = torch.zeros(d, dtype=torch.float64)
        for k, id in enumerate(ids):
            share = dict(zip(touched[side].ids.tolist(), touched[side].share.tolist(), strict=True)).get(id)
            w = 0.0 if share is None else 1.0 if side == "user" else min(1.0, 5 * share)
            n = int(((index.ids[side] == id) & ~deleted).sum())
            first = tables[side][id]
            goal = first + told[k] - old[k] - w * (first - old[k])
            if n == 0:
                goal = maps.rare if side == "item" and w > 0 else first
            step, now[side][id] = goal - now[side][id], goal
            moved += step * (int((index.ids[side] == id).sum()) if side == "user" else 1) / maps.weight[side]
        middle[side] = middle[side] + moved
    for side, members in region.items():
        assert torch.allclose(tables[side][members.ids] + found[side], now[side][members.ids], atol=1e-5)


@given(st.integers(0, 10**6), st.integers(2, 6))
def test_a_row_is_placed_as_far_from_the_map_and_as_long_as_a_trained_one(seed, d):
    randn, generator = draws(seed), torch.Generator().manual_seed(seed)
    number = torch.randint(1, 30, (60,), generator=generator).sort().values
    told, rest = randn(60, d), randn(60, d)
    scatter = new_start.Scatter(torch.arange(60), number, (told + rest).norm(dim=1), rest)
    apart, own = Members(torch.arange(0, 60, 7), torch.ones(9)), torch.tensor([1, 5, 10, 20, 29])
    like = scatter.like(own, apart, generator)
    assert not apart.contains(like).any()
    assert like[0].max() < 30 <= like[-1].min()  # few links, and many
    assert scatter.like(own, Members(torch.arange(40), torch.ones(40)), generator).shape == (5, 0)  # too few are left
    mapped, one = told[like[:, 0]], like[:, 0]  # a map of about the donor's size: both lengths can be had
    length, far = scatter.length[one][:, None], scatter.rest[one].norm(dim=1, keepdim=True)
    assert 0 < (scatter.lengths(like, generator) / torch.stack([length, far]) - 1).abs().max() < 0.5  # not a copy
    row = new_start.placed(mapped, scatter.mixture(like, generator), length, far)
    torch.testing.assert_close(row.norm(dim=1, keepdim=True), length)
    torch.testing.assert_close((row - mapped).norm(dim=1, keepdim=True), far)
    torch.testing.assert_close(new_start.placed(mapped, row, length, far), row)  # in the row's own direction


def test_rounds_end_where_the_map_feeds_on_itself():
    """A map that contracts takes all rounds; one that amplifies is stopped before it goes further than at first."""
    pairs = [(u, i) for u in range(1, 8) for i in range(1, 9) if (u + i) % 3]
    _, retained, touched = rows_of(pairs, [(1, 1), (2, 3)])
    region = new_start.spread(touched, retained)
    randn = draws(4)
    tables = {"user": randn(8, 2), "item": randn(9, 2)}
    before = {side: table.clone() for side, table in tables.items()}
    shape, centre = randn(9, 2), {side: randn(2) for side in tables}

    def moves(gain, rounds):
        maps = new_start.Maps(dict.fromkeys(tables, gain * shape), centre, {"user": 30.0, "item": 9.0}, randn(2), {})
        links_of = functools.partial(new_start.PairLinks, retained.index, tables)
        found = new_start.NewStart(tables, maps, touched, (region, links_of, retained)).moves(rounds)
        return torch.cat([found[side].flatten() for side in tables])

    for gain, ends in ((0.1, False), (10.0, True)):
        found = [moves(gain, rounds) for rounds in (1, 2, 6)]
        assert torch.equal(found[0], found[1]) == torch.equal(found[1], found[2]) == ends
    assert all(torch.equal(tables[side], before[side]) for side in tables)


def test_the_rarest_items(monkeypatch):
    monkeypatch.setattr("recbole_unlearn.rows.region.LEAST_RARE", 3)
    pairs = [(user, item) for item in range(1, 9) for user in range(1, 1 + 4 * item)] + [(1, 9), (2, 9)]
    assert rarest(Rows(pairs, users=40, items=11)).tolist() == [9, 1, 2]


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 40), st.integers(0, 999))
def test_no_direction_of_a_change_is_larger_than_the_median(rows, d, sources, seed):
    moves = draws(seed)(rows, d)
    moves[:, 0] *= 50.0
    found = new_start.even(moves, sources)
    if min(rows, sources) < d:
        assert torch.equal(found, moves)
        return
    before = torch.linalg.svdvals(moves).sort().values
    middle = before[(d - 1) // 2]
    assert torch.allclose(torch.linalg.svdvals(found).sort().values, before.clamp(max=middle), atol=1e-4)


def test_those_who_follow_are_as_many_as_the_request_is_large(monkeypatch):
    """The most contaminated come first; rows that S touches are in whatever the limit is."""
    pairs = [(1, item) for item in range(1, 9)]
    pairs += [(user, item) for user in range(2, 8) for item in range(1, user + 1)]
    index, retained, touched = rows_of(pairs, [(1, item) for item in range(1, 3)])
    whole = new_start.spread(touched, retained, 0.02)
    assert len(whole["user"]) == 7
    level = dict(zip(whole["user"].ids.tolist(), whole["user"].share.tolist(), strict=True))
    monkeypatch.setattr(new_start, "LEAST_LINKS", 0)
    monkeypatch.setattr(new_start, "LINKS", 4)
    part = new_start.spread(touched, retained, 0.02)
    own = {side: set(touched[side].ids.tolist()) for side in touched}
    followers = {side: set(part[side].ids.tolist()) - own[side] for side in part}
    links = [index.counts(side, torch.tensor(list(ids), dtype=torch.long)) for side, ids in followers.items()]
    assert 0 < int(torch.cat(links).sum()) <= 4 * 2
    assert all(own[side] <= set(part[side].ids.tolist()) for side in own)
    left_out = set(whole["user"].ids.tolist()) - set(part["user"].ids.tolist())
    assert left_out
    assert all(level[a] >= level[b] for a in followers["user"] for b in left_out)


# Sequences: windows made by hand

USERS, ITEMS, LENGTH = 6, 9, 8  # ids, of which 0 is padding, and places of a history
WIDTHS = {"user": 2, "item": 3}
HISTORY = st.lists(st.integers(1, ITEMS - 1), min_size=1, max_size=LENGTH)
WINDOWS = st.lists(st.tuples(st.integers(1, USERS - 1), st.integers(1, ITEMS - 1), HISTORY), max_size=12)


def dataset(windows, length=LENGTH, items=ITEMS):
    """Windows (user, target, history) as the dataset of a sequential model has them."""
    histories = torch.zeros(len(windows), length, dtype=torch.long)
    for row, (_, _, history) in enumerate(windows):
        histories[row, : len(history)] = torch.tensor(history)
    return SimpleNamespace(
        inter_feat={
            "user_id": torch.tensor([user for user, _, _ in windows], dtype=torch.long),
            "item_id": torch.tensor([item for _, item, _ in windows], dtype=torch.long),
            "item_id_list": histories,
            "item_length": torch.tensor([len(history) for _, _, history in windows], dtype=torch.long),
        },
        uid_field="user_id", iid_field="item_id", item_list_length_field="item_length",
        config={"LIST_SUFFIX": "_list"}, item_num=items,
    )  # fmt: skip


def random_tables(seed, with_users=True, users=USERS, items=ITEMS):
    randn, sizes = draws(seed), {"user": users, "item": items}
    return {side: randn(sizes[side], WIDTHS[side]) for side in (SIDES if with_users else ("item",))}


def centres(tables):
    return {side: table.mean(dim=0) for side, table in tables.items()}


def mean_by_loop(side, number, windows, tables, centre):
    """m of one user or item, one window after the other."""
    own = [window for window in windows if window[0 if side == "user" else 1] == number]
    items = tables["item"]
    width = items.shape[1]
    if side == "user":
        return mean_of([items[item] for _, item, _ in own], width) - centre["item"], len(own)
    before = mean_of([mean_of([items[i] for i in history[-5:]], width) for *_, history in own], width)
    found = [before - centre["item"]]
    if "user" in tables:
        users = tables["user"]
        found.append(mean_of([users[user] for user, *_ in own], users.shape[1]) - centre["user"])
    return torch.cat(found), len(own)


@given(WINDOWS, st.sampled_from(SIDES), st.data(), st.booleans(), st.integers(1, LENGTH + 3))
def test_means_are_those_of_a_loop_over_windows(windows, side, data, with_users, length):
    """Also where histories have fewer places than the five that are looked at."""
    windows = [(user, item, history[-length:]) for user, item, history in windows]
    with_users, most = with_users or side == "user", (USERS if side == "user" else ITEMS) - 1
    ids = torch.tensor(sorted(data.draw(st.sets(st.integers(1, most)))), dtype=torch.long)
    tables = random_tables(0, with_users)
    centre = centres(tables)
    links = WindowLinks(dataset(windows, length), side, ids)
    found = links.mean(tables, centre)
    width = WIDTHS["item"] + (WIDTHS["user"] if with_users and side == "item" else 0)
    assert (found.shape, links.number.shape) == ((len(ids), width), (len(ids),))
    for row, number in enumerate(ids.tolist()):
        mean, count = mean_by_loop(side, number, windows, tables, centre)
        assert int(links.number[row]) == count
        assert torch.allclose(found[row], mean, atol=1e-6)  # weights of windows have 32 bits


def many_windows(seed, users=40, items=60, number=900):
    generator = torch.Generator().manual_seed(seed)

    def draw(high, size=()):
        return torch.randint(1, high, size, generator=generator).tolist()

    # Numbers of windows differ, or the map's parts for them could not be told apart.
    skewed = torch.rand(number, 2, generator=generator) ** 3 * torch.tensor([users - 1, items - 1])
    return [(user, item, draw(items + 9, (draw(LENGTH),))) for user, item in (skewed.long() + 1).tolist()]


def by_formula(side, ids, windows, tables, centre):
    return torch.stack([features_by_formula(*mean_by_loop(side, k, windows, tables, centre)) for k in ids])


@functools.cache
def made_by_a_map(with_users):
    """Windows, tables whose rows in windows are as a map says, and the map."""
    windows = many_windows(3)
    tables = random_tables(4, with_users, 40, 69)  # the last items are in histories alone
    inputs = {"user": WIDTHS["item"], "item": sum(WIDTHS[side] for side in tables)}
    transform = {side: 0.05 * draws(5)(3 * inputs[side] + 3, WIDTHS[side]) for side in tables}
    known = {side: sorted({window[0 if side == "user" else 1] for window in windows}) for side in tables}
    for _ in range(200):  # rows depend on each other and on their mean
        centre = {side: tables[side][known[side]].mean(dim=0) for side in tables}
        made = {s: by_formula(s, known[s], windows, tables, centre) @ transform[s] for s in tables}
        change = max(float((made[side] - tables[side][known[side]]).abs().max()) for side in tables)
        for side in tables:
            tables[side][known[side]] = made[side]
        if change < 1e-13:
            break
    assert change < 1e-13
    return windows, tables, transform


@pytest.mark.parametrize("with_users", [False, True])
@pytest.mark.parametrize("ridge", [1e-13, new_start.RIDGE])
def test_the_map_that_made_the_rows_is_found(monkeypatch, with_users, ridge):
    """(G + λI)⁻¹ G T for rows that T made, λ relative to the mean of G's diagonal: T itself without a ridge."""
    windows, tables, transform = made_by_a_map(with_users)
    monkeypatch.setattr(new_start, "RIDGE", ridge)
    given = dataset(windows, items=69)
    maps = learn_windows(tables, given, torch.Generator().manual_seed(0))
    for side, expected in transform.items():
        known = given.inter_feat[f"{side}_id"].unique()
        x = by_formula(side, known.tolist(), windows, tables, maps.centre)
        gram = x.T @ x
        less = ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        ridged = torch.linalg.solve(gram + less, gram @ expected)
        assert torch.allclose(maps.transform[side], ridged, atol=1e-5), side
        assert torch.allclose(maps.transform[side], expected, atol=1e-4) == (ridge < 1e-9)  # they are .05 large
        assert torch.allclose(maps.centre[side], tables[side][known].mean(dim=0))
    assert torch.allclose(maps.rare, tables["item"][rarest(given)].mean(dim=0))
    if ridge < 1e-9:  # a row that starts again altogether, from the same windows, is where it was
        for moved in restarted_by_windows(tables, maps, region_of({3: 1.0}, {4: 1.0, 5: 1.0}), given, 1).values():
            assert moved.abs().max() < 1e-6


def test_no_map_is_learned_from_few_rows():
    tables, windows = random_tables(6, users=40, items=69), many_windows(3)
    assert learn_windows(tables, dataset(windows, items=69), torch.Generator()) is not None
    few = [window for window in windows if window[0] < 20]  # 19 users, and 4 · (2 + 3) are needed
    assert learn_windows(tables, dataset(few, items=69), torch.Generator()) is None
    del tables["user"]
    assert learn_windows(tables, dataset(few, items=69), torch.Generator()) is not None
    index = TrainIndex(Rows([(user, 1 + (user + k) % 8) for user in range(1, 8) for k in range(3)]))
    tables = {"user": torch.randn(8, 16), "item": torch.randn(9, 16)}
    assert new_start.learn_pairs(tables, index, torch.Generator()) is None


def restarted_by_windows(tables, maps, touched, windows, rounds):
    found = touched, functools.partial(WindowLinks, windows), None
    return new_start.NewStart(tables, maps, touched, found).moves(rounds)


SOME = [(1, 2, [3, 4]), (1, 3, [2, 4, 5, 6, 7, 8]), (2, 2, [1, 5])]
SOME += [(2, 5, [3]), (3, 4, [1, 2, 3, 2, 1, 2, 4])]
LOST = {"user": {1: 0.3, 3: 0.1, 5: 1.0}, "item": {2: 0.5, 3: 0.06, 4: 1.0, 7: 0.01, 8: 0.5}}  # 5, 7, 8: no window


@pytest.mark.parametrize("with_users", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_sides_start_again_in_turn(rounds, with_users):
    tables = random_tables(10, with_users)
    inputs, randn = {"user": WIDTHS["item"], "item": sum(WIDTHS[side] for side in tables)}, draws(7)
    transform = {side: 0.03 * randn(3 * inputs[side] + 3, WIDTHS[side]) for side in tables}
    maps = new_start.Maps(transform, centres(tables), {}, randn(WIDTHS["item"]), {})
    moved = restarted_by_windows(tables, maps, region_of(*LOST.values()), dataset(SOME), rounds)
    now = {side: table.clone() for side, table in tables.items()}
    for side in ["user", *["item", "user"] * rounds]:
        if side not in tables:
            continue
        goals = {}
        for number, share in LOST[side].items():
            alone = all(window[0 if side == "user" else 1] != number for window in SOME)
            w = 1.0 if side == "user" else min(1.0, 5 * share)
            to = (by_formula(side, [number], SOME, now, maps.centre) @ maps.transform[side])[0]
            if alone:
                w, to = (1.0, maps.rare) if side == "item" else (0.0, to)
            goals[number] = tables[side][number] + w * (to - tables[side][number])
        for number, row in goals.items():
            now[side][number] = row
    for side in tables:
        ids = list(LOST[side])
        assert torch.allclose(moved[side], now[side][ids] - tables[side][ids], atol=1e-5), side


@pytest.mark.parametrize(("share", "degree"), [(0.01, 0.05), (0.1, 0.5), (0.2, 1.0), (0.9, 1.0)])
def test_an_item_starts_again_as_far_as_it_lost(share, degree):
    assert float(new_start.degree("item", torch.tensor([share]))) == pytest.approx(degree)
    assert float(new_start.degree("user", torch.tensor([share]))) == 1.0
    again = new_start.started_again(region_of({3: share}, {5: share}))
    assert (len(again["user"]), len(again["item"])) == (1, int(degree >= 0.5))
