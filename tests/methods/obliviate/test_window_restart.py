"""The new start of sequential models against loops over hand-made windows."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn.methods.obliviate import Links, Maps, learn, window_restart
from recbole_unlearn.methods.obliviate.window_restart import restart
from recbole_unlearn.rows import Members, Region, rarest

USERS, ITEMS, LENGTH = 6, 9, 8  # ids, of which 0 is nobody's, and places of a history
WIDTHS = {"user": 2, "item": 3}
WINDOWS = st.lists(
    st.tuples(
        st.integers(1, USERS - 1),
        st.integers(1, ITEMS - 1),
        st.lists(st.integers(1, ITEMS - 1), min_size=1, max_size=LENGTH),
    ),
    max_size=12,
)


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
    generator = torch.Generator().manual_seed(seed)
    sizes = {"user": users, "item": items}
    return {
        side: torch.randn(sizes[side], WIDTHS[side], generator=generator, dtype=torch.float64)
        for side in (("user", "item") if with_users else ("item",))
    }


def centres(tables):
    return {side: table.mean(dim=0) for side, table in tables.items()}


def mean_of(rows, width):
    return sum(rows, torch.zeros(width, dtype=torch.float64)) / max(1, len(rows))


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


def features_by_formula(mean, number):
    mean, count = (mean, number) if number else (torch.zeros_like(mean), 1)
    last = torch.tensor([math.sqrt(count), math.log(count), 1.0], dtype=mean.dtype)
    return torch.cat([math.sqrt(count) * mean, math.log(count) * mean, mean, last])


# Neighbours


@hypothesis_settings(max_examples=80, deadline=None)
@given(WINDOWS, st.sampled_from(["user", "item"]), st.data(), st.booleans(), st.integers(LENGTH, LENGTH + 3))
def test_means_are_those_of_a_loop_over_windows(windows, side, data, with_users, length):
    with_users = with_users or side == "user"
    most = (USERS if side == "user" else ITEMS) - 1
    ids = torch.tensor(sorted(data.draw(st.sets(st.integers(1, most)))), dtype=torch.long)
    tables = random_tables(0, with_users)
    centre = centres(tables)
    links = Links(side, ids, dataset(windows, length))
    found = links.mean(tables, centre)
    width = WIDTHS["item"] + (WIDTHS["user"] if with_users and side == "item" else 0)
    assert found.shape == (len(ids), width)
    assert links.number.shape == (len(ids),)
    for row, number in enumerate(ids.tolist()):
        mean, count = mean_by_loop(side, number, windows, tables, centre)
        assert int(links.number[row]) == count
        assert torch.allclose(found[row], mean, atol=1e-6)  # weights of windows have 32 bits


def test_histories_may_have_fewer_places_than_are_looked_at():
    windows = [(1, 2, [3, 4]), (2, 2, [5]), (2, 1, [4])]
    tables = random_tables(1)
    found = Links("item", torch.tensor([1, 2]), dataset(windows, length=2)).mean(tables, centres(tables))
    for row, item in enumerate((1, 2)):
        expected, _ = mean_by_loop("item", item, windows, tables, centres(tables))
        assert torch.allclose(found[row], expected, atol=1e-6)


# The map


def many_windows(seed, users=40, items=60, number=900):
    generator = torch.Generator().manual_seed(seed)

    def draw(high, size=()):
        return torch.randint(1, high, size, generator=generator).tolist()

    def skewed(high):  # numbers of windows differ, or the map's parts for them could not be told apart
        return ((torch.rand(number, generator=generator) ** 3 * (high - 1)).long() + 1).tolist()

    return [
        (user, item, draw(items + 9, (draw(LENGTH),)))
        for user, item in zip(skewed(users), skewed(items), strict=True)
    ]


@pytest.fixture
def made_by_a_map():
    """``made_by_a_map(with_users)``: windows, maps, and tables whose rows in windows are as the maps say."""

    def make(with_users):
        windows = many_windows(3)
        tables = random_tables(4, with_users, 40, 69)  # the last items are in histories alone
        transform = {}
        for side in tables:
            inputs = WIDTHS["item"] + (WIDTHS["user"] if side == "item" and with_users else 0)
            generator = torch.Generator().manual_seed(5)
            transform[side] = 0.05 * torch.randn(
                3 * inputs + 3, WIDTHS[side], generator=generator, dtype=torch.float64
            )
        known = {side: sorted({window[0 if side == "user" else 1] for window in windows}) for side in tables}
        for _ in range(200):  # rows depend on each other and on their mean
            centre = {side: tables[side][known[side]].mean(dim=0) for side in tables}
            made = {}
            for side in tables:
                found = [mean_by_loop(side, number, windows, tables, centre) for number in known[side]]
                made[side] = torch.stack([features_by_formula(*one) for one in found]) @ transform[side]
            change = max(float((made[side] - tables[side][known[side]]).abs().max()) for side in tables)
            for side in tables:
                tables[side][known[side]] = made[side]
            if change < 1e-13:
                break
        assert change < 1e-13
        return windows, tables, transform

    return make


@pytest.mark.parametrize("with_users", [False, True])
def test_the_map_that_made_the_rows_is_found(made_by_a_map, monkeypatch, with_users):
    windows, tables, transform = made_by_a_map(with_users)
    monkeypatch.setattr(window_restart, "RIDGE", 1e-13)
    given = dataset(windows, items=69)
    maps = learn(tables, given, torch.Generator().manual_seed(0))
    for side, expected in transform.items():
        assert torch.allclose(maps.transform[side], expected, atol=1e-4), side  # they are .05 large
        field = given.inter_feat[f"{side}_id"]
        assert torch.allclose(maps.centre[side], tables[side][field.unique()].mean(dim=0))
    assert torch.allclose(maps.rare, tables["item"][rarest(given)].mean(dim=0))
    # A row that starts again altogether, from the same windows, is where it was.
    region = Region(
        user=Members(torch.tensor([3]), torch.ones(1)), item=Members(torch.tensor([4, 5]), torch.ones(2))
    )
    for moved in restart(tables, maps, region, given, 1).values():
        assert moved.abs().max() < 1e-6


def test_the_ridge_is_relative_to_the_features(made_by_a_map):
    """(G + λI)⁻¹ G T for rows that T made, λ being .02 of the mean of G's diagonal."""
    windows, tables, transform = made_by_a_map(with_users=False)
    given = dataset(windows, items=69)
    maps = learn(tables, given, torch.Generator().manual_seed(0))
    known = given.inter_feat["item_id"].unique().tolist()
    x = torch.stack(
        [features_by_formula(*mean_by_loop("item", k, windows, tables, maps.centre)) for k in known]
    )
    gram = x.T @ x
    ridge = 0.02 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    assert torch.allclose(
        maps.transform["item"], torch.linalg.solve(gram + ridge, gram @ transform["item"]), atol=1e-5
    )


def test_no_map_is_learned_from_few_rows():
    tables = random_tables(6, users=40, items=69)
    windows = many_windows(3)
    assert learn(tables, dataset(windows, items=69), torch.Generator()) is not None
    few = [window for window in windows if window[0] < 20]  # 19 users, and 4 · (2 + 3) are needed
    assert learn(tables, dataset(few, items=69), torch.Generator()) is None
    assert learn({"item": tables["item"]}, dataset(few, items=69), torch.Generator()) is not None


# The new start


def some_maps(tables, seed=7):
    generator = torch.Generator().manual_seed(seed)
    inputs = {"user": WIDTHS["item"], "item": sum(table.shape[1] for table in tables.values())}
    transform = {
        side: torch.randn(3 * inputs[side] + 3, table.shape[1], generator=generator, dtype=table.dtype)
        for side, table in tables.items()
    }
    rare = torch.randn(tables["item"].shape[1], generator=generator, dtype=torch.float64)
    return Maps(transform, centres(tables), rare)


def goal(side, number, windows, tables, maps):
    mean, count = mean_by_loop(side, number, windows, tables, maps.centre)
    return features_by_formula(mean, count) @ maps.transform[side]


def region_of(users, items):
    found = Region()
    for side, shares in (("user", users), ("item", items)):
        ids = sorted(shares)
        found[side] = Members(torch.tensor(ids, dtype=torch.long), torch.tensor([shares[k] for k in ids]))
    return found


SOME = [
    (1, 2, [3, 4]),
    (1, 3, [2, 4, 5, 6, 7, 8]),
    (2, 2, [1, 5]),
    (2, 5, [3]),
    (3, 4, [1, 2, 3, 2, 1, 2, 4]),
]


def test_rows_go_as_far_as_they_lost():
    """An item with w = 1 is where the map says, one with w = 0 is not moved by a bit, between it is linear."""
    tables = random_tables(8, with_users=False)
    maps = some_maps(tables)
    first = tables["item"][2]
    for share, w in ((1.0, 1.0), (0.2, 1.0), (0.1, 0.5), (0.05, 0.25), (0.0, 0.0)):
        moved = restart(tables, maps, region_of({}, {2: share}), dataset(SOME), 1)["item"]
        expected = w * (goal("item", 2, SOME, tables, maps) - first)
        assert torch.allclose(moved[0], expected, atol=1e-6), share  # w has 32 bits
    assert torch.equal(moved, torch.zeros_like(moved))


def test_what_is_in_no_window():
    """Item 7 is one of the rarest however little it lost; user 4 has nothing to start from."""
    tables = random_tables(9)
    maps = some_maps(tables)
    region = region_of({2: 0.1, 4: 1.0}, {3: 1.0, 7: 0.01})
    moved = restart(tables, maps, region, dataset(SOME), 1)
    assert torch.allclose(tables["item"][7] + moved["item"][1], maps.rare)
    assert not moved["user"][1].any()
    assert moved["user"][0].any()
    assert moved["item"][0].any()


@pytest.mark.parametrize("with_users", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_sides_start_again_in_turn(rounds, with_users):
    """Users first, then items and users as often as asked: each from the rows that the last turn left."""
    tables = random_tables(10, with_users)
    maps = some_maps(tables)
    users, items = {1: 0.3, 3: 0.1, 5: 1.0}, {2: 0.5, 3: 0.06, 4: 1.0, 8: 0.5}
    moved = restart(tables, maps, region_of(users, items), dataset(SOME), rounds)
    now = {side: table.clone() for side, table in tables.items()}
    for side in ["user", *["item", "user"] * rounds]:
        if side not in tables:
            continue
        goals = {}
        for number, share in (users if side == "user" else items).items():
            alone = all(window[0 if side == "user" else 1] != number for window in SOME)
            w = 1.0 if side == "user" else min(1.0, 5 * share)
            to = goal(side, number, SOME, now, maps)
            if alone:
                w, to = (1.0, maps.rare) if side == "item" else (0.0, to)
            goals[number] = tables[side][number] + w * (to - tables[side][number])
        for number, row in goals.items():
            now[side][number] = row
    for side in tables:
        ids = sorted(users if side == "user" else items)
        assert torch.allclose(moved[side], now[side][ids] - tables[side][ids], atol=1e-5), side


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_are_left_bit_for_bit(dtype):
    """Also those that are views of weights, with rows of others around them."""
    whole = {side: torch.randn(20, WIDTHS[side], dtype=dtype) for side in WIDTHS}
    before = {side: table.clone() for side, table in whole.items()}
    views = {"user": whole["user"][3 : 3 + USERS], "item": whole["item"][5 : 5 + ITEMS]}
    maps = some_maps(random_tables(0))
    maps = Maps(
        *({side: value.to(dtype) for side, value in part.items()} for part in maps[:2]), maps.rare.to(dtype)
    )
    region = region_of({1: 0.3, 3: 0.1, 5: 1.0}, {2: 0.5, 3: 0.06, 4: 1.0, 8: 0.5})
    moved = restart(views, maps, region, dataset(SOME), 2)
    assert all(change.any() for change in moved.values())
    for side, table in whole.items():
        assert torch.equal(table, before[side])
