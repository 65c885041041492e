"""Ways to pass without forgetting: new rows, a mask, another file, ruined users; and a log that tells the size."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from recbole_unlearn import UnlearnConfig, run_unlearn
from recbole_unlearn.data import load
from recbole_unlearn.measures import probe as module
from recbole_unlearn.measures import verdict as words
from recbole_unlearn.measures.verdict import restated, verdict
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.registry import METHODS
from recbole_unlearn.results import PhaseResult
from tests.conftest import QUICK
from tests.measures.conftest import NOTHING
from tests.parts import without

FIELDS = ("user_id", "item_id")


@pytest.fixture
def whole(data):
    """`tiny` without users 1 to 12."""
    return without(data.full, data.full.train.inter_feat["user_id"].numpy() <= 12)


def test_the_probe_is_its_formula(whole, monkeypatch):
    """The row by least squares on an extended system, the AUC by counting pairs."""
    probes = module.Probes.of(whole, 0)
    assert len(probes.fitted) == 12
    items = torch.randn(whole.full.train.item_num, 5, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    monkeypatch.setattr(module, "find_vectors", lambda model, dataset: (None, items))
    found = module.probe(None, None, probes)
    root = float(np.sqrt(module.PENALTY * items[1:].double().square().mean()))
    for k, (fitted, ranked) in enumerate(zip(probes.fitted, probes.ranked, strict=True)):
        assert abs(len(fitted) - len(ranked)) <= 1
        x = np.concatenate([items[fitted].double().numpy(), root * np.eye(5)])
        row = np.linalg.lstsq(x, np.repeat([1.0, 0.0], [len(fitted), 5]), rcond=None)[0]
        score = items.double().numpy() @ row
        pairs = [(score[i], score[j]) for i in ranked.tolist() for j in probes.untouched[k].tolist()]
        auc = np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])
        assert float(found[k]) == pytest.approx(auc, abs=2e-3)  # equal scores may be told apart by rounding
    probes = module.Probes.of(whole, 3)
    assert module.probed_users(whole) == len(probes.fitted)
    users = torch.unique(whole.forget_pairs[0])
    met = {(u, i) for part in whole.full for u, i in zip(*(part.inter_feat[f].tolist() for f in FIELDS), strict=True)}
    for user, fitted, ranked, untouched in zip(
        users.tolist(), probes.fitted, probes.ranked, probes.untouched, strict=True
    ):
        own = whole.forget_pairs[1][whole.forget_pairs[0] == user]
        assert torch.equal(torch.cat([fitted, ranked]).sort().values, own.sort().values)
        assert not met & {(user, item) for item in untouched.tolist()}


def placed(gap, probe_gap=0.0, utility=0.0, error=0.002):
    """A phase at distances from the retrained model: demotion rate .5, probe .9, NDCG@20 .2."""
    figures = {
        "demotion_rate": 0.5 + gap, "demotion_gap": {"mean": gap, "error": error},
        "probe": 0.9 + probe_gap, "probe_gap": {"mean": probe_gap, "error": error},
        "utility_gap": {"mean": utility, "error": error},
    }  # fmt: skip
    return PhaseResult(affected={"ndcg@20": 0.2 + utility}, forgetting=figures)


@pytest.mark.parametrize(("original", "unlearned", "control", "whole", "level", "begins"), [
    ((-0.4, 0.03), (0.0, 0.001), (-0.4, 0.03), False, "near", "Forgotten, as far as measured: deleted items"),
    # Rows of whole users start again: the demotion rate says nothing, the probe does.
    ((-0.4, 0.03), (0.0, 0.03), (0.0, 0.03), True, "under", "Not fully forgotten: item vectors tell more"),
    ((-0.4, 0.03), (-0.1, 0.001), (-0.2, 0.03), True, "near", "Forgotten, as far as measured: item vectors"),
    ((-0.4, 0.03), (0.1, -0.03), (0.0, 0.03), True, "over", "Forgotten too well: item vectors tell less"),
    ((-0.4, 0.03), (0.0, 0.03), (-0.4, 0.03), False, "under", "Not fully forgotten: deleted items rank about where"),
    # Whatever the method did, nothing would have passed as well.
    ((-0.4, 0.03), (0.0, 0.0), (0.001, 0.001), True, "cannot_tell", words._WORDS["control"]),
    ((-0.4, 0.0), (0.0, 0.0), (0.001, 0.0), False, "cannot_tell", words._WORDS["control"]),
    # Affected users lost much of their recommendations, or as much as another seed may cost.
    ((-0.4, 0.03), (0.0, 0.0, -0.06), (-0.4, 0.03), False, "over", words._WORDS["damage"] + " (NDCG@20 0.140"),
    ((-0.4, 0.03), (0.0, 0.0, -0.04), (-0.4, 0.03), False, "near", "Forgotten, as far as measured: deleted items"),
])  # fmt: skip
def test_a_verdict_that_nothing_passes(original, unlearned, control, whole, level, begins):
    phases = {"original": placed(*original), "unlearned": placed(*unlearned), "retrained": placed(0.0)}
    found = verdict({**phases, "control": placed(*control)}, {}, whole=whole)
    assert found.level == level
    assert found.text.startswith(begins)
    assert (found.text.endswith(words.WHOLE), restated(found, phases, {})) == (whole, found)
    withheld = restated(found, {}, {})  # of few users: no figure, and the same reason
    assert withheld.level == level
    assert not re.search(r"\d\.\d", withheld.text)
    assert withheld.text.startswith(found.text.split(" (")[0].split(":")[0])


@pytest.mark.slow
@pytest.mark.parametrize("model", QUICK)
def test_doing_nothing_does_not_pass_for_whole_users_and_retraining_does(ml_100k, model):
    """Their rows are reset by the base class; the item vectors stay as they were trained."""
    values = ml_100k(model)
    train = load(UnlearnConfig(model, "ml-100k", config_dict=values)).splits.train
    users = np.random.default_rng(0).choice(np.arange(1, train.user_num), 90, replace=False)
    asked = {"forget": {"user_id": train.id2token("user_id", users).tolist()}, "compare": ["retrain", "retrain"]}
    record = run_unlearn(model, "ml-100k", unlearn="obliviate", **asked, config_dict=values | NOTHING).record
    assert record.verdict.level == record.control.verdict.level == "under"
    assert record.verdict.text.endswith(words.WHOLE)
    assert record.unlearned.figure("probe_gap", "mean") > 3 * record.unlearned.figure("probe_gap", "error")
    floor = {name: record.phases[name] for name in ("original", "retrained")}
    again = dataclasses.replace(record.phases["retrained_2"], exact=False)  # judged by its figures
    assert verdict({**floor, "unlearned": again}, {}, whole=True).level == "near"


def test_a_run_has_a_control_and_no_more_is_disclosed_of_it(settings, tmp_path):
    values, request = settings | {"epochs": 2}, {"user_id": [f"u{k}" for k in range(12)]}
    outcome = run_unlearn("BPR", "tiny", forget=request, unlearn="finetune", compare="retrain", config_dict=values)
    control = outcome.result["control"]
    assert control["forgetting"]["probe_gap"].keys() == {"mean", "error"}
    assert control["verdict"]["level"] in ("under", "cannot_tell")
    assert "<h2>Control</h2>" in (tmp_path / "out" / "report.html").read_text()
    small = values | {"min_group": 13}
    few = run_unlearn("BPR", "tiny", forget=request, unlearn="finetune", compare="retrain", config_dict=small).result
    assert few["control"]["forgetting"] == few["control"]["metrics"] == {}
    assert not re.search(r"\d\.\d", few["control"]["verdict"]["text"])


class Masked(UnlearnTrainer):
    """Hides deleted items while it scores, and changes no weight."""

    def unlearn(self, task):
        forget, plain = task.data.forget.inter_feat, self.model.full_sort_predict

        def hidden(batch):
            scores = plain(batch).view(len(batch), -1)
            for row, user in enumerate(batch["user_id"].tolist()):
                scores[row, forget["item_id"][forget["user_id"] == user]] = -1e4
            return scores.view(-1)

        self.model.full_sort_predict = hidden


class Swapped(UnlearnTrainer):
    """Shows a model of zeros, and saves the original."""

    def unlearn(self, task):
        self.kept = self.snapshot()
        with torch.no_grad():
            for value in self.model.parameters():
                value.zero_()

    def save(self, *place):
        shown = self.snapshot()
        self.kept.load_into(self.model)
        name = UnlearnTrainer.save(self, *place)
        shown.load_into(self.model)
        return name


@pytest.mark.parametrize("attacker", [Masked, Swapped])
def test_what_only_the_object_has_is_in_no_figure(settings, monkeypatch, attacker):
    monkeypatch.setattr(METHODS.get("finetune"), "unlearn", attacker.unlearn)
    monkeypatch.setattr(METHODS.get("finetune"), "save", attacker.save)
    values = settings | {"report": "none"}
    request = {"user_id": ["u1", "u2", "u3"], "item_id": [first_item(values, user) for user in ("u1", "u2", "u3")]}
    phases = run_unlearn("BPR", "tiny", forget=request, unlearn="finetune", config_dict=values).record.phases
    assert phases["unlearned"].forgetting["demotion_rate"] == phases["original"].forgetting["demotion_rate"]
    assert phases["unlearned"].metrics == phases["original"].metrics


def first_item(values, user):
    train = load(UnlearnConfig("BPR", "tiny", config_dict=values)).splits.train
    own = train.inter_feat["user_id"] == train.token2id("user_id", user)
    return str(train.id2token("item_id", train.inter_feat["item_id"][own][:1].numpy())[0])


@pytest.mark.parametrize("unlearn", ["obliviate", "sisa", "gradient_ascent", "ifru"])
def test_the_log_is_the_same_for_one_interaction_and_for_twelve_users(settings, tmp_path, unlearn):
    """Steps, ranks and restarted shards go with the size of a request; times, and the rough size, are said to."""
    logs = []
    one, twelve = {"user_id": ["u3"], "item_id": [first_item(settings, "u3")]}, [f"u{k}" for k in range(12)]
    for request in (one, {"user_id": twelve}):
        values = settings | {"min_group": 20, "report": "none", "cache": False, "epochs": 1}
        values |= {"lac_batch_size": 8} if unlearn == "obliviate" else {}
        run_unlearn("BPR", "tiny", forget=request, unlearn=unlearn, config_dict=values)
        log = (tmp_path / "out" / "run.log").read_text().split("forgetting about")[-1].splitlines()[1:]
        (tmp_path / "out" / "run.log").unlink()
        own = [line for line in log if "demotion rate" not in line and "NDCG" not in line]
        logs.append([re.sub(r"^\S+ \S+|[\d.]+ ?s\b", "", line) for line in own])
    assert logs[0] == logs[1]
