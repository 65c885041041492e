"""Stage 1: signs, scales, ranks, curvature and the new start, each against a closed form."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn.data import load
from recbole_unlearn.methods.obliviate import contamination, curvature, downdate, lua, restart
from recbole_unlearn.rows import (
    Members,
    Region,
    RetainedIndex,
    TrainIndex,
    as_batch,
    find_region,
    loss_gradients,
)
from recbole_unlearn.training import build_model, train
from tests.parts import Rows, divided, make_adapters, make_witness


def quadratic(seed, n=40, d=5):
    """Ridge regression: J(θ) = ½Σ(xᵀθ − y)² + ½|θ|², whose leave-out optimum is known exactly."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    y = torch.randn(n, generator=rng, dtype=torch.float64)

    def optimum(rows):
        a = x[rows].T @ x[rows] + torch.eye(d, dtype=torch.float64)
        return torch.linalg.solve(a, x[rows].T @ y[rows])

    return x, y, optimum


@pytest.mark.parametrize("seed", range(5))
def test_the_sign_goes_up_the_deleted_loss(seed):
    """Paper error 1: θ₋S ≈ θ0 + H⁻¹g_S. With the exact Hessian of the retained rows it is exact; minus is far off."""
    x, y, optimum = quadratic(seed)
    deleted, kept = torch.arange(4), torch.arange(4, 40)
    start, target = optimum(torch.arange(40)), optimum(kept)
    gradient = x[deleted].T @ (x[deleted] @ start - y[deleted])
    hessian = x[kept].T @ x[kept] + torch.eye(5, dtype=torch.float64)
    step = torch.linalg.solve(hessian, gradient)
    assert torch.allclose(start + step, target)
    assert (start - step - target).norm() > 1.9 * (start - target).norm()


@pytest.mark.parametrize("seed", range(5))
def test_the_diagonal_downdate_approaches_the_leave_out_optimum(seed):
    """Paper error 2: with √v̂ for curvature only a scale is missing; small ones help, and none does with a minus."""
    x, y, optimum = quadratic(seed)
    deleted, kept = torch.arange(4), torch.arange(4, 40)
    start, target = optimum(torch.arange(40)), optimum(kept)
    gradient = x[deleted].T @ (x[deleted] @ start - y[deleted])
    moment = (x * (x @ start - y)[:, None]).square().mean(dim=0)
    step = downdate.direction(gradient, moment)
    distance = [(start + scale * step - target).norm() for scale in (0.0, 1e-3, 3e-3, 1e-2, 3e-2)]
    assert min(distance[1:]) < distance[0]
    assert (start - 1e-3 * step - target).norm() > distance[0]


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 999))
def test_the_projection_is_the_truncated_svd(rows, d, seed):
    delta = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    for rank in range(1, d + 1):
        low = lua.project(delta, rank)
        best = (u[:, :rank] * s[:rank]) @ vh[:rank]
        assert torch.allclose(low.a @ low.b.T, best, atol=1e-6)
        assert low.energy == pytest.approx(float((s[:rank] ** 2).sum() / (s**2).sum()), abs=1e-6)


def test_all_deltas_at_one_rank():
    generator = torch.Generator().manual_seed(0)
    deltas = [torch.randn(n, 6, generator=generator) for n in (9, 4)]
    for low, delta in zip(lua.project_all(deltas, "full", True), deltas, strict=True):
        assert torch.equal(low.a @ low.b.T, delta)
        assert low.energy == 1.0
    apart = lua.project_all(deltas, 2, False)
    assert not torch.equal(apart[0].b, apart[1].b)
    assert torch.allclose(apart[0].a, lua.project(deltas[0], 2).a)
    one = lua.project_all(deltas, 2, True)
    assert torch.equal(one[0].b, one[1].b)
    stack = lua.project(torch.cat(deltas), 2)
    assert torch.allclose(torch.cat([low.a @ low.b.T for low in one]), stack.a @ stack.b.T, atol=1e-5)
    for low, delta in zip(one, deltas, strict=True):
        kept = (low.a @ low.b.T).square().sum() / delta.square().sum()
        assert low.energy == pytest.approx(float(kept), abs=1e-5)


def test_nothing_to_project():
    low = lua.project_all([torch.zeros(3, 4)], 2, True)[0]
    assert low.energy == 1.0
    assert torch.allclose(low.b.T @ low.b, torch.eye(2))


# Contamination


def rows_of(pairs, gone, users=8, items=9):
    """An index of ``pairs`` and what is left of it without ``gone``."""
    index = TrainIndex(Rows(pairs, users=users, items=items))
    keys = {tuple(pair) for pair in gone}
    marks = zip(index.ids["user"].tolist(), index.ids["item"].tolist(), strict=True)
    deleted = torch.tensor([pair in keys for pair in marks])
    left = [index.ids[side][deleted] for side in ("user", "item")]
    return index, RetainedIndex(index, *left, deleted), find_region(index, *left)


def test_contamination_falls_from_hop_to_hop():
    """User 1 deletes one of three; items 1 and 2 are theirs, of two and of four users; user 5 is far away."""
    pairs = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 2), (4, 2), (3, 4), (5, 4), (5, 5)]
    _, retained, touched = rows_of(pairs, [(1, 3)])
    region = contamination.spread(touched, retained, 0.0)
    level = {side: dict(zip(m.ids.tolist(), m.share.tolist(), strict=True)) for side, m in region.items()}
    assert level["user"][1] == 1.0  # who asked starts again
    assert level["item"][3] == 1.0  # lost all it had
    assert level["item"][1] == pytest.approx(1 / 2)
    assert level["item"][2] == pytest.approx(1 / 4)
    assert level["user"][2] == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert level["user"][3] == pytest.approx((1 / 4 + 0) / 2)
    assert level["user"].get(5, 0.0) == 0.0
    near = contamination.spread(touched, retained, 0.3)
    assert near["user"].ids.tolist() == [1]  # what is below the reach is not passed on
    assert near["item"].ids.tolist() == [1, 3]
    assert contamination.spread(touched, retained, 1.0)["item"].ids.tolist() == [3]


@pytest.mark.parametrize(("share", "degree"), [(0.01, 0.05), (0.1, 0.5), (0.2, 1.0), (0.9, 1.0)])
def test_an_item_starts_again_as_far_as_it_lost(share, degree):
    shares = torch.tensor([share])
    assert float(contamination.degree("item", shares)) == pytest.approx(degree)
    assert float(contamination.degree("user", shares)) == 1.0
    region = Region(user=Members(torch.tensor([3]), shares), item=Members(torch.tensor([5]), shares))
    again = contamination.started_again(region)
    assert (len(again["user"]), len(again["item"])) == (1, int(degree >= 0.5))


# The new start


def linear_world(seed=1, users=200, items=90, d=3):
    """Tables whose user rows are exactly a map of their items' rows, and an index with numbers of every size."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [
        (user, item)
        for user in range(1, users)
        for item in (torch.randperm(items - 1, generator=generator)[: 3 + user % 40] + 1).tolist()
    ]
    index = TrainIndex(Rows(pairs, users=users, items=items))
    tables = {
        "user": torch.zeros(users, d, dtype=torch.float64),
        "item": torch.randn(items, d, generator=generator, dtype=torch.float64),
    }
    transform = torch.randn(3 * d + 3, d, generator=generator, dtype=torch.float64)
    told = told_of(index, "user", range(1, users), tables["item"], tables["item"][1:].mean(dim=0))
    tables["user"][1:] = told @ transform
    return index, tables, transform


def told_of(index, side, ids, table, centre, deleted=None):
    """The features of rows written out, link by link; without ``deleted`` ones where that is given."""
    other = {"user": "item", "item": "user"}[side]
    found = []
    for k in ids:
        mine = index.ids[side] == k
        mine &= ~deleted if deleted is not None else mine
        n, d = int(mine.sum()), table.shape[1]
        mean = table[index.ids[other][mine]].mean(dim=0) - centre if n else torch.zeros(d).to(table)
        root, log = max(n, 1) ** 0.5, math.log(max(n, 1))
        found.append(torch.cat([root * mean, log * mean, mean, torch.tensor([root, log, 1.0]).to(table)]))
    return torch.stack(found)


def test_the_map_is_found(monkeypatch):
    monkeypatch.setattr(restart, "RIDGE", 1e-14)
    index, tables, transform = linear_world()
    maps = restart.learn(tables, index, torch.Generator().manual_seed(0))
    assert torch.allclose(maps.transform["user"], transform, atol=1e-5)
    counts = index.counts("user", torch.arange(index.sizes["user"])).double()
    assert torch.allclose(maps.centre["user"], (counts[:, None] * tables["user"]).sum(0) / counts.sum())


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_what_is_added_up_is_the_formula_written_out(seed, rounds):
    """Turn by turn, with sums over all retained links taken anew each time."""
    generator = torch.Generator().manual_seed(seed)
    users, items, d = 12, 10, 2
    keep = torch.rand(users, items, generator=generator) < 0.5
    pairs = [(u, i) for u in range(1, users) for i in range(1, items) if keep[u, i]] or [(1, 1)]
    index = TrainIndex(Rows(pairs, users=users, items=items))
    deleted = torch.rand(len(index), generator=generator) < 0.2
    left = [index.ids[side][deleted] for side in ("user", "item")]
    retained, touched = RetainedIndex(index, *left, deleted), find_region(index, *left)
    region = contamination.spread(touched, retained, 0.05)
    sizes = {"user": users, "item": items}
    tables = {side: torch.randn(n, d, generator=generator, dtype=torch.float64) for side, n in sizes.items()}
    transform = {side: torch.randn(3 * d + 3, d, generator=generator, dtype=torch.float64) for side in sizes}
    centre = {side: torch.randn(d, generator=generator, dtype=torch.float64) for side in sizes}
    maps = restart.Maps(transform, centre, {"user": 30.0, "item": 9.0}, torch.zeros(d, dtype=torch.float64))
    monkey = restart.even
    restart.even = lambda moves, sources: moves
    try:
        found = restart.restart(tables, maps, touched, region, retained, rounds)
    finally:
        restart.even = monkey

    now, middle = {side: table.clone() for side, table in tables.items()}, dict(centre)
    for turn, side in enumerate(["user"] + ["item", "user"] * rounds):
        other, ids = {"user": "item", "item": "user"}[side], region[side].ids.tolist()
        if not ids:
            continue
        old = told_of(index, side, ids, tables[other], centre[other]) @ transform[side]
        told = told_of(index, side, ids, now[other], middle[other], deleted) @ transform[side]
        moved = torch.zeros(d, dtype=torch.float64)
        for k, id in enumerate(ids):
            place = touched[side].ids.tolist().index(id) if id in touched[side].ids else None
            share = touched[side].share[place].reshape(1) if place is not None else torch.zeros(1)
            w = float(contamination.degree(side, share)) if place is not None else 0.0
            n = int(((index.ids[side] == id) & ~deleted).sum())
            first = tables[side][id]
            goal = first + told[k] - old[k] - w * (first - old[k])
            if n == 0:
                goal = maps.rare if side == "item" and w > 0 else first
            step = (min(1.0, restart.FIRM / max(n, 1)) if turn > 2 else 1.0) * (goal - now[side][id])
            now[side][id] = now[side][id] + step
            moved += step * (int((index.ids[side] == id).sum()) if side == "user" else 1) / maps.weight[side]
        middle[side] = middle[side] + moved
    for side, members in region.items():
        assert torch.allclose(tables[side][members.ids] + found[side], now[side][members.ids], atol=1e-5)


def test_a_user_who_starts_again_is_where_their_retained_items_put_them(monkeypatch):
    """Where the map is exact and items stay, the new row is that of a user who never had the deleted items."""
    monkeypatch.setattr(restart, "RIDGE", 1e-14)
    index, tables, transform = linear_world()
    mine = index.ids["item"][index.of("user", torch.tensor([5]))].tolist()
    gone = [(5, item) for item in mine[:3]]
    deleted = torch.tensor(
        [(u, i) in gone for u, i in zip(index.ids["user"].tolist(), index.ids["item"].tolist(), strict=True)]
    )
    left = [index.ids[side][deleted] for side in ("user", "item")]
    retained, touched = RetainedIndex(index, *left, deleted), find_region(index, *left)
    alone = Region(user=touched["user"], item=touched["item"].part(torch.zeros(3, dtype=torch.bool)))
    maps = restart.learn(tables, index, torch.Generator().manual_seed(0))
    before = {side: table.clone() for side, table in tables.items()}
    found = restart.restart(tables, maps, alone, alone, retained, 1)
    wanted = told_of(index, "user", [5], tables["item"], tables["item"][1:].mean(dim=0), deleted) @ transform
    assert torch.allclose(tables["user"][5] + found["user"][0], wanted[0], atol=1e-4)
    assert all(torch.equal(tables[side], before[side]) for side in tables)  # nothing is written


def test_nothing_of_the_old_row_is_left():
    """θ₀ + (b − a) − w (θ₀ − a): with w = 1 the old row does not matter."""
    index, tables, _ = linear_world()
    generator = torch.Generator().manual_seed(3)
    maps = restart.learn(tables, index, torch.Generator().manual_seed(0))
    numbers = index.of("user", torch.tensor([7]))[:2]
    deleted = torch.zeros(len(index), dtype=torch.bool)
    deleted[numbers] = True
    left = [index.ids[side][deleted] for side in ("user", "item")]
    retained, touched = RetainedIndex(index, *left, deleted), find_region(index, *left)
    region = contamination.spread(touched, retained, 1.0)
    ends = []
    for _ in range(2):
        tables["user"][7] = torch.randn(3, generator=generator, dtype=torch.float64)
        found = restart.restart(tables, maps, touched, region, retained, 2)
        ends.append(tables["user"][7] + found["user"][region["user"].ids.tolist().index(7)])
    # The map is of the table before, so only what D says of the row changes with it, through its items.
    spread = (ends[0] - ends[1]).norm()
    assert spread < 0.05 * ends[0].norm()


def test_an_item_that_is_nobodys_is_like_the_rarest(monkeypatch):
    """Item 9 loses all its rows; items 1 to 8 have n rows each, and their rows in the table say n."""
    monkeypatch.setattr(restart, "RAREST", 3)
    pairs = [(user, item) for item in range(1, 9) for user in range(1, 1 + 4 * item)] + [(1, 9), (2, 9)]
    index, retained, touched = rows_of(pairs, [(1, 9), (2, 9)], users=40, items=10)
    tables = {"user": torch.randn(40, 2), "item": torch.arange(10.0)[:, None] * torch.ones(1, 2)}
    maps = restart.learn(tables, index, torch.Generator().manual_seed(0))
    assert maps.rare.tolist() == [4.0, 4.0]  # of items 9, 1 and 2
    found = restart.restart(tables, maps, touched, touched, retained, 1)
    assert torch.allclose(tables["item"][9] + found["item"][0], maps.rare)


def test_too_few_to_learn_from():
    pairs = [(user, 1 + (user + k) % 8) for user in range(1, 8) for k in range(3)]
    index = TrainIndex(Rows(pairs))
    tables = {"user": torch.randn(8, 16), "item": torch.randn(9, 16)}
    assert restart.learn(tables, index, torch.Generator().manual_seed(0)) is None


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 40), st.integers(0, 999))
def test_no_direction_of_a_change_is_larger_than_the_median(rows, d, sources, seed):
    moves = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    moves[:, 0] *= 50.0
    found = restart.even(moves, sources)
    if min(rows, sources) < d:
        assert torch.equal(found, moves)
        return
    before = torch.linalg.svdvals(moves).sort().values
    middle = before[(d - 1) // 2]
    assert torch.allclose(torch.linalg.svdvals(found).sort().values, before.clamp(max=middle), atol=1e-4)


# The downdate by the optimizer's state


def at_zero(adapters):
    """Adapters that change nothing, over the model as it is."""
    for adapter in adapters.adapters:
        adapter.base = adapters.rows(adapter)[adapter.rows].clone()
        adapter.a = torch.zeros_like(adapter.base)


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NeuMF"])
def test_directions_are_gradients_over_curvature_for_the_rows_of_the_region(make_config, monkeypatch, model):
    monkeypatch.setattr(downdate, "DRAWS", 1)
    config = make_config(model, reg_weight=0.0) if model == "LightGCN" else make_config(model)
    data = divided(config)
    adapters = make_adapters(config, data, make_witness(config, data))
    train(config, data.full, "x").load_weights(adapters.model)
    at_zero(adapters)
    moments = {name: torch.full_like(value, 4.0) for name, value in adapters.model.named_parameters()}
    torch.manual_seed(0)
    found, reach = downdate.directions(adapters, make_witness(config, data, seed=3), moments)
    again = make_witness(config, data, seed=3)
    triples = again.triples(data.deleted.nonzero().flatten())
    torch.manual_seed(0)
    adapters.model.train()
    expected = loss_gradients(adapters.model, again.batch(triples))[1]
    for adapter, step in zip(adapters.adapters, found, strict=True):
        rows = len(triples.users) * expected[adapter.name][adapter.rows] / 2.0
        assert torch.allclose(step, rows, atol=1e-4)
    assert reach == (pytest.approx(1.0, abs=1e-4) if model == "BPR" else pytest.approx(0.55, abs=0.45))


def test_the_downdate_goes_up_the_deleted_loss(make_config):
    """Paper error 1, on a model: by the optimizer's own state, a step makes the loss on S larger."""
    config = make_config(epochs=15)
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness)
    trained = train(config, data.full, "x")
    trained.load_weights(adapters.model)
    at_zero(adapters)
    moments = curvature.from_optimizer(adapters.model, trained.optimizer)
    triples = make_witness(config, data, seed=9).triples(data.deleted.nonzero().flatten())
    before = loss_gradients(adapters.model, witness.batch(triples))[0]
    found, reach = downdate.directions(adapters, witness, moments)
    steps = downdate.steps(adapters, witness.region, found, 0.05 / 64, 1.0, reach)
    for adapter, step in zip(adapters.trained, steps, strict=True):
        adapter.a = step
    adapters.attach()
    assert loss_gradients(adapters.model, witness.batch(triples))[0] > before


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 1.0), st.floats(0.1, 1.0), st.floats(0.0, 5.0), st.integers(0, 99))
def test_no_row_goes_further_than_its_limit(share, reach, limit, seed):
    generator = torch.Generator().manual_seed(seed)
    step, rows = (torch.randn(6, 4, generator=generator) for _ in range(2))
    step[0] = 0.0
    step[1] *= 1e-6
    found = downdate.limited(step, rows, torch.full((6,), share), limit, reach)
    most = min(limit * (share / reach) ** 2, downdate.LARGEST)
    lengths = found.norm(dim=1) / rows.norm(dim=1)
    assert bool((lengths <= most * 1.0001 + 1e-12).all())
    assert (
        torch.allclose(torch.cosine_similarity(found[2:], step[2:]), torch.ones(4), atol=1e-3) or most < 1e-6
    )
    if most * rows[1].norm() > 1e-4:
        assert torch.equal(found[1], step[1])  # what is short enough is left alone


# Curvature


@pytest.mark.parametrize(
    ("learner", "key"),
    [("adam", "exp_avg_sq"), ("adamw", "exp_avg_sq"), ("rmsprop", "square_avg"), ("adagrad", "sum")],
)
def test_moments_are_read_from_the_optimizer(make_config, learner, key):
    config = make_config(learner=learner, epochs=2)
    splits = load(config).splits
    trained = train(config, splits, "x")
    model = build_model(config, splits)
    moments = curvature.from_optimizer(model, trained.optimizer)
    raw = trained.optimizer["state"][1][key]
    step = float(trained.optimizer["state"][1]["step"])
    expected = {"exp_avg_sq": raw / (1 - 0.999**step), "square_avg": raw, "sum": raw / step}[key]
    assert torch.allclose(moments["item_embedding.weight"], expected)
    assert list(moments) == ["user_embedding.weight", "item_embedding.weight"]


def test_without_moments_there_is_fisher_information(make_config, caplog):
    config = make_config(learner="sgd", epochs=1)
    splits = load(config).splits
    trained = train(config, splits, "x")
    model = build_model(config, splits)
    with pytest.raises(curvature.UnusableStateError, match=r"keeps no second moments|there is none"):
        curvature.from_optimizer(model, trained.optimizer)
    with pytest.raises(curvature.UnusableStateError, match="there is none"):
        curvature.from_optimizer(model, None)
    batch = as_batch(config, splits.train, torch.arange(8), torch.arange(1, 9))
    caplog.set_level("INFO")
    assert curvature.read_state(model, trained.optimizer, 3) is None
    assert "is not used: " in caplog.text
    assert "Curvature is the Fisher information of retained interactions" in caplog.text
    moments, read = curvature.from_retained(model, [batch, batch])
    assert read == "Fisher information of retained interactions"
    gradient = loss_gradients(model, batch)[1]["user_embedding.weight"]
    assert torch.allclose(moments["user_embedding.weight"], gradient.square())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: state.update(exp_avg_sq=state["exp_avg_sq"][:, :4]), "have another shape"),
        (
            lambda state: state.update(exp_avg_sq=state["exp_avg_sq"].fill_(float("nan"))),
            "not squares of gradients",
        ),
        (lambda state: state.update(exp_avg_sq=state["exp_avg_sq"] - 1.0), "not squares of gradients"),
        (lambda state: state.update(exp_avg_sq=state["exp_avg_sq"] + 1e30), "not squares of gradients"),
        (lambda state: state.update(exp_avg_sq=state["exp_avg_sq"] * 0.0), "all moments are zero"),
        (lambda state: state.update(step="x"), "damaged"),
        (lambda state: state.update(step=0), "damaged|not squares"),
        (lambda state: state.update(exp_avg_sq=3), "another shape"),
        (lambda state: state.pop("step"), "damaged"),
        (lambda state: state.update(step=torch.zeros(3)), "damaged"),
    ],
)
def test_moments_that_cannot_be_are_noticed(make_config, caplog, change, reason):
    """Zero, absurd or foreign moments would make a downdate of any size; they are not used, and one line says so."""
    config = make_config(epochs=1)
    splits = load(config).splits
    trained = train(config, splits, "x")
    for state in trained.optimizer["state"].values():
        change(state)
    model = build_model(config, splits)
    with pytest.raises(curvature.UnusableStateError, match=reason):
        curvature.from_optimizer(model, trained.optimizer)
    assert curvature.read_state(model, trained.optimizer, 3) is None
    assert caplog.text.count("The optimizer's state is not used") == 1


def test_those_who_follow_are_as_many_as_the_request_is_large(monkeypatch):
    """The most contaminated come first; rows that S touches are in whatever the limit is."""
    pairs = [(1, item) for item in range(1, 9)]
    pairs += [(user, item) for user in range(2, 8) for item in range(1, user + 1)]
    index, retained, touched = rows_of(pairs, [(1, item) for item in range(1, 3)])
    whole = contamination.spread(touched, retained, 0.02)
    assert len(whole["user"]) == 7
    level = dict(zip(whole["user"].ids.tolist(), whole["user"].share.tolist(), strict=True))
    monkeypatch.setattr(contamination, "LEAST_LINKS", 0)
    monkeypatch.setattr(contamination, "LINKS", 4)
    part = contamination.spread(touched, retained, 0.02)
    own = {side: set(touched[side].ids.tolist()) for side in touched}
    followers = {side: set(part[side].ids.tolist()) - own[side] for side in part}
    links = sum(
        int(index.counts(side, torch.tensor(sorted(ids))).sum()) for side, ids in followers.items() if ids
    )
    assert 0 < links <= 4 * 2
    assert all(own[side] <= set(part[side].ids.tolist()) for side in own)
    left_out = set(whole["user"].ids.tolist()) - set(part["user"].ids.tolist())
    assert left_out
    assert all(level[a] >= level[b] for a in followers["user"] for b in left_out)
