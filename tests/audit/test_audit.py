"""Whole audits on ml-100k: the floor, the ceiling, a planted leak, a second call; and what is refused."""

import json

import numpy as np
import pytest
import torch

from recbole_unlearn import audit_unlearn, cli
from recbole_unlearn.audit import shadows
from recbole_unlearn.methods import UnlearnTrainer, method
from recbole_unlearn.registry import METHODS
from tests.parts import refused


@pytest.fixture
def leak():
    """A method that starts the rows of deleted users again, but for the ten users with most deleted interactions."""

    @method("leak", "For the tests.")
    class Leak(UnlearnTrainer):
        def unlearn(self, task):
            return None

        def apply(self, task):
            users, counts = torch.unique(task.data.forget.inter_feat["user_id"], return_counts=True)
            rows = users[counts.argsort(descending=True)[:10]]
            kept = self.model.user_embedding.weight.detach()[rows].clone()
            outcome = super().apply(task)
            with torch.no_grad():
                self.model.user_embedding.weight[rows] = kept
            return outcome

    yield "leak"
    METHODS.entries.pop("leak")


@pytest.mark.slow
def test_an_audit_has_a_floor_and_a_ceiling_and_finds_a_leak(ml_100k, leak, tmp_path):
    values = ml_100k("BPR") | {
        "forget": "random:5%",
        "shadows": 8,
        "output_dir": str(tmp_path / "audit"),
        "report": "html",
    }
    made = audit_unlearn("BPR", "ml-100k", config_dict=values | {"unlearn": leak, "compare": ["rebuild"]})
    phases = made.result["phases"]
    auc = {name: phase["u_lira"]["auc"] for name, phase in phases.items()}
    assert set(auc) == {"original", "unlearned", "rebuild", "retrained"}
    assert auc["original"] > 0.65
    assert auc["retrained"] == pytest.approx(0.5, abs=0.02)
    assert auc["rebuild"] == pytest.approx(0.5, abs=0.02)
    worst = {name: phase["u_lira"]["worst"]["auc"] for name, phase in phases.items()}
    assert worst["unlearned"] > 0.7
    assert worst["retrained"] == pytest.approx(0.5, abs=0.06)
    assert 0.52 < auc["unlearned"] < auc["original"]
    assert set(phases["rebuild"]) == {"u_lira"}  # its outputs are of another recipe
    apart = {name: phase["klom"]["deleted"]["mean"] for name, phase in phases.items() if name != "rebuild"}
    assert apart["original"] > apart["unlearned"] > apart["retrained"]
    assert phases["original"]["epsilon"]["mean"] > phases["retrained"]["epsilon"]["mean"]
    assert phases["retrained"]["epsilon"]["p95"] <= np.log(7)

    folder = tmp_path / "audit"
    assert json.loads((folder / "audit.json").read_text())["phases"] == json.loads(json.dumps(phases))
    assert {path.name for path in folder.iterdir()} == {"audit.json", "audit.html", "run.log"}
    page = (folder / "audit.html").read_text()
    assert page.count("<svg") >= 2
    assert "8 shadow models" in page
    assert "retrained" in str(made)


def test_rounds_that_are_done_are_not_done_again(settings, monkeypatch, tmp_path):
    values = settings | {"forget": "random:40%", "shadows": 4, "unlearn": "rebuild", "min_group": 1, "workers": 1}
    done, original = [], shadows.run_round

    def stopped(work, place):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(place)
        return original(work, place)

    monkeypatch.setattr(shadows, "run_round", stopped)
    with pytest.raises(KeyboardInterrupt):
        audit_unlearn("BPR", "tiny", config_dict=values)
    monkeypatch.setattr(shadows, "run_round", lambda work, place: done.append(place) or original(work, place))
    first = audit_unlearn("BPR", "tiny", config_dict=values).result
    assert done == [0, 1, 2, 3]
    again = audit_unlearn("BPR", "tiny", config_dict=values | {"output_dir": str(tmp_path / "again")}).result
    assert again["phases"] == first["phases"]


def test_each_shadow_model_has_half_and_its_couple_the_other_half(make_config, settings):
    from recbole_unlearn.data import Protocol, Source, load

    config = make_config(forget="random:40%")
    splits = load(config).splits
    data = Protocol.read("random:40%").divided(Source(splits, None), 7)
    pairs = Pairs = shadows.Pairs.of(data, 7)
    work = shadows.Work(config, data, pairs, [], None, 6)
    saw, train = work.saw(), splits.train
    assert saw.shape == (6, Pairs.ends[0])
    assert (saw.sum(axis=0) == 3).all()
    keys = data.forget.inter_feat["user_id"] * train.item_num + data.forget.inter_feat["item_id"]
    for place in range(0, 6, 2):
        parts = [work.half(saw[n]) for n in (place, place + 1)]
        found = [
            part.forget.inter_feat["user_id"] * train.item_num + part.forget.inter_feat["item_id"] for part in parts
        ]
        assert torch.equal(torch.cat(found).sort().values, keys.sort().values)
        for part in parts:
            assert len(part.full.train) == len(data.retain.train) + len(part.forget)
            for field in ("user_id", "item_id"):
                assert torch.equal(part.retain.train.inter_feat[field], data.retain.train.inter_feat[field])


def test_a_request_of_people_is_rough_and_small_ones_are_refused(settings):
    forget = {"user_id": [f"u{n}" for n in range(12)]}
    values = settings | {"shadows": 4, "min_group": 10, "report": "html"}
    made = audit_unlearn("BPR", "tiny", forget=forget, config_dict=values | {"unlearn": "rebuild"})
    figures = made.result["phases"]["retrained"]
    assert "curve" not in figures["u_lira"]
    assert "curve" not in figures["klom"]
    assert figures["klom"]["deleted"]["mean"] == round(figures["klom"]["deleted"]["mean"], 2)
    small = values | {"output_dir": values["output_dir"] + "2"}
    refused(
        "at least 50 deleted pairs of 10 users",
        audit_unlearn,
        "BPR",
        "tiny",
        forget={"user_id": ["u1"]},
        config_dict=small,
    )


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("SASRec", {"MAX_ITEM_LIST_LENGTH": 5}, "ranks after histories"),
        ("BPR", {"shadows": 5}, "shadow models come in couples"),
        ("BPR", {"shadows": 2}, "shadows=2 is not valid"),
    ],
)
def test_audits_that_cannot_be_are_refused(settings, model, changes, said):
    values = settings | {"forget": "random:40%"} | changes
    if model == "SASRec":
        del values["embedding_size"]
    refused(said, audit_unlearn, model, "tiny", config_dict=values)


def test_the_commands_explain_themselves(capsys):
    assert cli.main(["audit", "--help"]) == 0
    assert cli.main(["evaluate"]) == 0
    said = capsys.readouterr().out
    assert "--shadows=16" in said
    assert "--original=A" in said
