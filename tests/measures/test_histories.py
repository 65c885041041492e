"""Figures at uncleaned histories: each against its definition, and on models that should and should not differ."""

import numpy as np
import pytest
import torch

from recbole_unlearn.data import load
from recbole_unlearn.measures import View, forgetting, observe, verdict
from recbole_unlearn.measures.scores import HistoryQuestions
from recbole_unlearn.results import Verdict
from recbole_unlearn.results.disclosure import Crowd, Discretion
from recbole_unlearn.training import train_here
from tests.measures.conftest import untrained
from tests.parts import without

SMALL = {"MAX_ITEM_LIST_LENGTH": 6, "hidden_size": 8, "inner_size": 8, "n_layers": 1, "n_heads": 1}


@pytest.fixture(params=["SASRec"])
def config(request, make_config, settings):
    del settings["embedding_size"]
    return make_config(request.param, **(SMALL if request.param == "SASRec" else {"MAX_ITEM_LIST_LENGTH": 6}))


@pytest.fixture
def data(config):
    return without_users(config, [6, 7], also=range(1, 6), places=slice(None, None, 2))


def without_users(config, users, also=(), places=slice(3, 4)):
    """`tiny` without all training interactions of ``users``, and without those of ``also`` at ``places``."""
    splits = load(config).splits
    owners = splits.train.inter_feat["user_id"].numpy()
    some = [np.flatnonzero(owners == user)[places] for user in also]
    return without(splits, np.concatenate([np.flatnonzero(np.isin(owners, users)), *some]))


class ByHistory:
    """Replaces a trainer: an item's score is a function of the history and the item alone."""

    def batch_scores(self, batch, dataset):
        return self.of(batch["item_id_list"], dataset.item_num)

    @staticmethod
    def of(histories, size):
        mixed = (histories * torch.arange(1, histories.shape[1] + 1)).sum(dim=1)
        scores = ((mixed[:, None] * 7919 + torch.arange(size) * 104729) % 1009).float()
        scores[:, 0] = -torch.inf
        return scores


def history_of(data, user, length, before=None):
    """The last items of a user in D before the training interaction with item ``before``, or before test."""
    sequences = data.full.sequences
    feat = sequences.raw.inter_feat
    own = ((feat["user_id"] == user) & (sequences.role != 2)).nonzero().flatten().tolist()
    own.sort(key=lambda k: (int(sequences.role[k]), float(feat["timestamp"][k]), k))
    seen = feat["item_id"][own].tolist()
    last = seen[: None if before is None else seen.index(before)][-length:]
    return torch.tensor([last + [0] * (length - len(last))])


def test_deleted_items_are_asked_for_at_the_histories_they_were_trained_with(data):
    questions = HistoryQuestions.ask(data, 10, 0)
    seen = observe(ByHistory(), questions, data.retain)
    size, length = data.full.train.item_num, SMALL["MAX_ITEM_LIST_LENGTH"]
    assert len(questions.deleted) > 20
    assert len(questions.emptied) > 0
    for pairs, demoted in ((questions.deleted, seen.uncleaned), (questions.emptied, seen.emptied)):
        for k in range(len(pairs)):
            user, item = int(pairs.users[k]), int(pairs.items[k])
            (scores,) = ByHistory.of(history_of(data, user, length, item), size)
            assert float(demoted[k]) == pytest.approx(float((scores[item] < scores[pairs.others[k]]).float().mean()))


def test_a_model_that_did_nothing_has_the_originals_figures_and_a_retrained_one_has_others(config, data):
    original, trained = train_here(config, data.full, "original")
    retrained, _ = train_here(config, data.retain, "retrained")
    same, measurement = untrained(config, data)
    trained.load_weights(same.model)
    before = measurement.measure(original)
    after, target = (measurement.measure(trainer, before) for trainer in (same, retrained))
    keys = ("demotion_rate", "uncleaned", "emptied", "resurfacing@20")
    for key in keys:
        assert after.forgetting[key] == before.forgetting[key], key
    assert measurement.distances(after, target) == measurement.distances(before, target)
    assert measurement.distances(after, before)["emptied_gap"] == {"mean": 0.0, "error": 0.0}
    assert measurement.distances(after, before)["ks"] == 0.0
    for key in keys[:3]:
        assert target.forgetting[key] != before.forgetting[key], key
    # Cleaning alone changes the questions, and so the original's answers.
    assert before.forgetting["uncleaned"]["demotion_rate"] != before.forgetting["demotion_rate"]


class Knowing(ByHistory):
    """Ranks the targets that it was shown first."""

    def __init__(self, windows, share):
        shown = torch.cat([windows["item_id_list"], windows["item_id"][:, None]], dim=1)
        self.known = {tuple(row) for row in shown.tolist()}
        self.share = share

    def batch_scores(self, batch, dataset):
        scores = super().batch_scores(batch, dataset) / 1009
        for row, history in enumerate(batch["item_id_list"].tolist()):
            for item in range(1, dataset.item_num):
                if (*history, item) in self.known:
                    scores[row, item] += self.share
        return scores


def test_a_model_that_is_merely_worse_has_not_forgotten(config):
    """The gap of emptied histories is what they lose beyond held-out items of others."""
    data = without_users(config, [3, 4, 5])
    questions = HistoryQuestions.ask(data, 10, 0)
    pairs = {"control": questions.control, "emptied": questions.emptied}
    every, emptied = (questions.windows[name](torch.arange(len(own))) for name, own in pairs.items())
    both = {key: torch.cat([every[key], emptied[key]]) for key in ("item_id", "item_id_list")}

    def gap(mine, target):
        seen = [observe(one, questions, data.retain) for one in (mine, target)]
        return forgetting._emptied_gap(View(questions, seen[0], retrained=seen[1]))["emptied_gap"]

    # The retrained model is good at held-out items, the original also at what it was trained on.
    retrained, original = Knowing(every, 0.5), Knowing(both, 0.5)
    assert gap(original, retrained)["mean"] < -0.1
    # A model that is worse at everything ranks emptied ones as low as the retrained model does, and does not pass.
    worse = Knowing(both, 0.0)
    means = [float(observe(model, questions, data.retain).emptied.mean()) for model in (worse, retrained)]
    assert means[0] == pytest.approx(means[1])
    assert gap(worse, retrained)["mean"] < -0.1
    assert gap(retrained, retrained) == {"mean": 0.0, "error": 0.0}


def test_users_are_counted_by_the_histories_they_are_asked_at(config):
    """Ten whole users and one with a single deleted item: the demotion rate is that one user's."""
    crowd = Crowd.of(without_users(config, range(1, 11), also=[20]), 10)
    assert (crowd.users, crowd.compared, crowd.emptied) == (11, 1, 10)
    assert Discretion(10, crowd).few
    whole = Crowd.of(without_users(config, range(1, 11)), 10)
    assert (whole.compared, whole.emptied) == (0, 10)
    assert not Discretion(10, whole).few
    assert Discretion(10, whole._replace(emptied=9)).few


FIGURES = {
    "attack": {"auc": 0.7123, "pairs": 44}, "own": 0.6789,  # a measure that declares nothing
    "demotion_rate": 0.1234, "uncleaned": {"demotion_rate": 0.3456}, "utility_gap": {"mean": 0.0123, "error": 0.0456},
    "emptied": {"demotion_rate": 0.5678}, "emptied_gap": {"mean": 0.0123, "error": 0.0456},
}  # fmt: skip
CROWD = Crowd(users=40, compared=20, matched=20, measured=10, tested=900, usual=200, emptied=50)


def test_figures_are_rounded_by_the_users_behind_them():
    assert Discretion(10, CROWD)._forgetting(FIGURES) == {
        "attack": {"auc": 0.7, "pairs": 45}, "own": 0.7,
        "demotion_rate": 0.1, "uncleaned": {"demotion_rate": 0.35}, "utility_gap": {"mean": 0.0, "error": 0.0},
        "emptied": {"demotion_rate": 0.56}, "emptied_gap": {"mean": 0.02, "error": 0.04},
    }  # fmt: skip


@pytest.mark.parametrize(("changes", "gone"), [
    ({"emptied": 9}, {"emptied", "emptied_gap"}),
    ({"compared": 9}, {"demotion_rate", "uncleaned", "own", "utility_gap"}),
    ({"matched": 9}, {"attack"}),
    ({"measured": 9}, {"utility_gap"}),
    ({"tested": 15}, {"emptied", "emptied_gap", "utility_gap"}),
])  # fmt: skip
def test_figures_of_too_few_users_are_left_out(changes, gone):
    shown = Discretion(10, CROWD._replace(users=40, **changes))._forgetting(FIGURES)
    assert set(FIGURES) - set(shown) == gone


@pytest.mark.parametrize("users", [3, 40])
def test_what_a_verdict_rests_on_is_said_whatever_is_shown(users):
    crowd = CROWD._replace(users=users, compared=0, emptied=users)
    found = Discretion(10, crowd)._verdict(Verdict("near", f"Forgotten. {verdict.EMPTIED}"), {}, {})
    assert found.level == "near"
    assert found.text.endswith(verdict.EMPTIED)
    nothing = Verdict("cannot_tell", verdict.NOTHING)
    assert Discretion(10, crowd)._verdict(nothing, {}, {}) == nothing
