"""Shared: refusals, divided data, a witness set over it, adapters, unchanged weights."""

import numpy as np
import pandas as pd
import pytest
import torch

from recbole_unlearn.data import Located, divide, load
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods.obliviate import Adapter, AdapterSet
from recbole_unlearn.rows import SIDES, Members, Region, RetainedIndex, TrainIndex, Witness, as_rows, find_region
from recbole_unlearn.rows.tables import find_tables
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model
from tests.files import plain_recbole


def refused(said, call, *args, **kwargs):
    """The message of a call that is refused, in one line that matches ``said``."""
    with pytest.raises(UnlearnError, match=said or None) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def loaded(config):
    """A config, and the splits that it means."""
    return config, load(config).splits


class Rows:
    """As much of a RecBole dataset as the index reads."""

    uid_field, iid_field = "user_id", "item_id"

    def __init__(self, pairs, users=8, items=9):
        columns = {"user_id": [user for user, _ in pairs], "item_id": [item for _, item in pairs]}
        self.inter_feat = {name: torch.tensor(column, dtype=torch.long) for name, column in columns.items()}
        self.user_num, self.item_num = users, items


def rest_of(index, deleted):
    """What is left of an index without the ``deleted`` interactions (a mask), and their region."""
    return RetainedIndex(index, deleted), find_region(index, *(index.ids[side][deleted] for side in SIDES))


def region_of(users=(), items=()):
    """The region of some ids; of a mapping, with the shares that they lost."""
    lost = {"user": users, "item": items}
    lost = {side: ids if isinstance(ids, dict) else dict.fromkeys(ids, 0.0) for side, ids in lost.items()}
    return Region({side: Members(torch.tensor(list(shares), dtype=torch.long), torch.tensor(list(shares.values())))
                   for side, shares in lost.items()})  # fmt: skip


def without(splits, rows):
    """A request for some training interactions, by their numbers or a mask."""
    mask = np.zeros(len(splits.train), bool)
    mask[rows] = True
    return divide(splits, Located(mask, *(np.zeros(len(part), bool) for part in splits[1:])), "x")


def divided(config, choose=lambda users: np.flatnonzero(users <= 5)[::2]):
    """`tiny` without the training interactions that are chosen by their users: every other one of users 1 to 5."""
    splits = load(config).splits
    return without(splits, choose(splits.train.inter_feat["user_id"].numpy()))


def same(first, second):
    """Whether two sets of weights are the same bit for bit."""
    return all(torch.equal(value, second[name]) for name, value in first.items())


def weights(model):
    """A copy of the weights."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def check_outside(model, before, train, region):
    """Everything but the rows of ``region`` is the same bit for bit; returns which of those changed, by parameter."""
    named = dict(model.named_parameters())
    outside = {name: torch.ones(value.shape, dtype=torch.bool) for name, value in named.items()}
    changed = {}
    for table in find_tables(model, train):
        rows = region[table.side].ids + table.offset
        as_rows(outside[table.parameter], table.axis)[rows] = False
        both = (as_rows(values[table.parameter], table.axis)[rows] for values in (named, before))
        changed[table.parameter] = torch.ne(*both).any(dim=1)
    assert any(mask.any() for mask in outside.values())
    for name, value in named.items():
        assert torch.equal(value[outside[name]], before[name][outside[name]]), name
    return changed


def make_witness(config, data, negatives=1.0, seed=0):
    retained, region = rest_of(TrainIndex(data.full.train), data.deleted)
    return Witness(config, retained, region, torch.Generator().manual_seed(seed), negatives)


def make_adapters(config, data, witness, rank=None, shared=False, seed=0):
    """A new model with adapters of random A on the region; B is random and orthonormal, the identity without rank."""
    generator, model = torch.Generator().manual_seed(seed), build_model(config, data.retain)
    named = dict(model.named_parameters())
    adapters, same = [], None
    for table in find_tables(model, data.full.train):
        rows = witness.region[table.side].ids + table.offset
        base = as_rows(named[table.parameter], table.axis)[rows].clone()
        d = base.shape[1]
        if shared and same is not None:
            b = same.clone()
        elif rank:
            b = torch.linalg.qr(torch.randn(d, min(rank, d), generator=generator))[0]
        else:
            b = torch.eye(d)
        same = b
        a = 0.1 * torch.randn(len(rows), b.shape[1], generator=generator)
        adapters.append(Adapter(table.parameter, rows, a, b, base, table.axis, table.side))
    found = AdapterSet(model, adapters)
    found.attach()
    return found


def problem(config, negatives=1.0, **about):
    """Divided data, a witness set over it, and adapters of a new model on its region."""
    data = divided(config)
    witness = make_witness(config, data, negatives)
    return data, witness, make_adapters(config, data, witness, **about)


def request_of_all_kinds(splits, some=("u7", "u8", "u9"), users=("u3", "u4"), item="i5"):
    """Users and an item as a whole; of ``some`` users the last two training, a validation and a test interaction."""
    rows = [(user, None) for user in users] + [(None, item)]
    for user in some:
        for part, number in zip(splits, (2, 1, 1), strict=True):
            mine = part.inter_feat["user_id"] == part.token2id("user_id", user)
            items = part.inter_feat["item_id"][mine][-number:]
            rows += [(user, one) for one in part.id2token("item_id", items.numpy())]
    return pd.DataFrame(rows, columns=["user_id", "item_id"])


def request_of(values, model):
    """The same, of `tiny` as the settings load it."""
    return request_of_all_kinds(load(UnlearnConfig(model, "tiny", config_dict=values)).splits)


def check_plain_recbole(results, folder):
    """In a process without the plugin, RecBole loads the saved models and finds the runs' splits and figures."""
    files = (result.output_dir / f"{result.config['model']}-unlearned.pth" for result in results)
    for result, (sizes, figure) in zip(results, plain_recbole(folder, *files), strict=True):
        assert sizes == [len(part) for part in result.data.retain.for_model()]
        assert figure == pytest.approx(result.result["phases"]["unlearned"]["metrics"]["ndcg@20"], abs=1e-4)
