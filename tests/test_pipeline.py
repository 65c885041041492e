"""Whole runs: the contract of result.json, the phases, the rules for whole users and items."""

import json
import logging

import pandas as pd
import pytest
import torch

from recbole_unlearn import UnlearnConfig, cli, run_unlearn, unlearn_model
from recbole_unlearn.data import load, loaders
from recbole_unlearn.training import build_model, train
from tests.parts import loaded

METRICS = {f"{name}@{k}" for name in ("recall", "ndcg") for k in (10, 20, 50)}


def without_times(value):
    """A result without the date, the id, and everything named after seconds or speed."""
    if isinstance(value, dict):
        own = ("speedup", "date", "request")
        return {k: without_times(v) for k, v in value.items() if "seconds" not in k and k not in own}
    return value


def test_the_contract(settings, tmp_path):
    """What result.json holds (its keys are frozen in tests/golden); two runs, and one from the cache, agree."""
    outcomes = [
        run_unlearn("BPR", "tiny", unlearn="retrain", compare="retrain", config_dict=settings | {
            "cache_dir": str(tmp_path / cache), "output_dir": f"o{number}", "report": "none"})
        for number, cache in enumerate(("a", "b", "b"))
    ]  # fmt: skip
    written = json.loads((tmp_path / "o0" / "result.json").read_text())
    assert written == outcomes[0].result
    assert str(tmp_path) not in json.dumps(written)  # no paths
    named = [written[key] for key in ("schema", "model", "dataset", "method", "seed")]
    assert named == [1, "BPR", "tiny", "retrain", 2020]
    assert list(written["phases"]) == ["original", "unlearned", "retrained"]
    for phase in written["phases"].values():
        assert set(phase["metrics"]) == set(phase["affected"]) == METRICS
        assert 0 <= phase["forgetting"]["demotion_rate"] <= 1
        assert phase["seconds"] > 0
    assert written["forget"]["users"] == 8  # 20 % of 40
    assert {"torch", "recbole", "python", "cores", "threads"} <= set(written["environment"])
    before, after, target = (phase["affected"] for phase in written["phases"].values())
    for metric, share in written["recovered"].items():
        moved = after[metric] - before[metric], target[metric] - before[metric]
        assert share == pytest.approx(moved[0] / moved[1], abs=1e-4)
    assert {*written["recovered"], *written.get("recovered_left_out", {}).get("metrics", [])} == METRICS
    first, second, third = (without_times(outcome.result) for outcome in outcomes)
    assert first == second == third
    original = [outcome.result["phases"]["original"] for outcome in outcomes]
    assert [phase["seconds_from_cache"] for phase in original] == [False, False, True]
    assert original[1]["seconds"] == original[2]["seconds"]
    assert f"{original[2]['seconds']:.1f}*" in str(outcomes[2])


def test_a_whole_user_and_a_whole_item(settings):
    """They leave all splits; a user without training interactions has the row of a new model and no metrics."""
    values = settings | {"report": "none"}
    item, user = (run_unlearn("BPR", "tiny", forget=one, unlearn="retrain", config_dict=values)
                  for one in ({"item_id": ["i7"]}, {"user_id": ["u5"]}))  # fmt: skip
    for outcome, field, token in ((user, "user_id", "u5"), (item, "item_id", "i7")):
        assert outcome.result["forget"][f"orphan_{field[:4]}s"] == 1
        row = outcome.data.full.train.token2id(field, token)
        assert not any((part.inter_feat[field] == row).any() for part in outcome.data.retain)
    assert item.result["phases"]["unlearned"]["forgetting"]["demotion_rate"] is not None
    fresh = build_model(user.config.replace(seed=2021), user.data.retain).user_embedding.weight
    row, other = user.data.full.train.token2id("user_id", ["u5", "u6"])
    assert torch.equal(user.model.user_embedding.weight[row], fresh[row])
    assert not torch.equal(user.model.user_embedding.weight[other], fresh[other])
    assert user.result["phases"]["unlearned"]["affected"] == user.result["recovered"] == {}
    assert "–" in str(user)


HELD_OUT = ["valid", "test"]


def held_out_request(settings, model="BPR"):
    """The first validation and the first test interaction."""
    splits = load(UnlearnConfig(model, "tiny", config_dict=settings)).splits
    parts = [getattr(splits, name) for name in HELD_OUT]
    return tuple(
        [str(part.id2token(field, int(part.inter_feat[field][0]))) for part in parts]
        for field in ("user_id", "item_id")
    )


@pytest.mark.parametrize(("model", "unlearn"), [
    ("BPR", "obliviate"), ("LightGCN", "finetune"), ("EASE", "obliviate"), ("Pop", "retrain"), ("MultiVAE", "ifru"),
    ("BPR", "receraser"),
])  # fmt: skip
def test_a_request_of_held_out_interactions_changes_no_weight(settings, model, unlearn, caplog):
    """The interactions leave the retained data; the model is the original bit for bit."""
    users, items = held_out_request(settings, model)
    sharded = unlearn == "receraser"
    values = settings | ({"receraser_shards": 2} if sharded else {})
    with caplog.at_level(logging.INFO):
        outcome = run_unlearn(model, "tiny", forget=(users, items), unlearn=unlearn, config_dict=values)
    written = json.loads((outcome.output_dir / "result.json").read_text())
    keys = ("interactions", "users", "items", "valid_rows_removed", "test_rows_removed")
    assert [written["forget"][key] for key in keys] == [0, 0, 0, 1, 1]
    assert list(written["phases"]) == ["original", "unlearned"]
    before, after = written["phases"].values()
    assert before["metrics"] == after["metrics"]
    assert after["forgetting"]["demotion_rate"] is None
    assert "no weight had to change" in written["verdict"]["text"]
    assert "No model was trained on them, so no weight has to change" in caplog.text
    if not sharded:
        original = train(outcome.config, outcome.data.full, "x").state_dict
        assert all(torch.equal(value, original[name]) for name, value in outcome.model.state_dict().items())
    for name, user, item in zip(HELD_OUT, users, items, strict=True):
        part = getattr(outcome.data.retain, name)
        pair = part.token2id("user_id", user), part.token2id("item_id", item)
        assert not ((part.inter_feat["user_id"] == pair[0]) & (part.inter_feat["item_id"] == pair[1])).any()
        assert len(part) == len(getattr(outcome.data.full, name)) - 1


@pytest.mark.parametrize(("model", "method"), [("BPR", "retrain"), ("BPR", "obliviate"), ("Pop", "retrain")])
def test_a_model_in_memory_is_given_back_as_it_is(settings, model, method):
    config, splits = loaded(UnlearnConfig(model, "tiny", config_dict=settings))
    trained = train(config, splits, "x")
    mine = build_model(config, splits)
    trained.load_into(mine)
    request = held_out_request(settings, model)
    unlearned = unlearn_model(config.to_recbole(), mine, loaders(config, splits), request, method=method)
    assert len(unlearned.data.forget) == 0
    assert all(torch.equal(v, mine.state_dict()[name]) for name, v in unlearned.model.state_dict().items())
    batch = splits.test.inter_feat[:5]
    assert torch.equal(unlearned.model.predict(batch), mine.predict(batch))
    assert len(unlearned.loaders.test._dataset) == len(splits.test) - 1


def test_ml_100k_without_any_configuration(tmp_path, capsys):
    """The main job of README, shortened: RecBole's own data, no network, no settings that must be known."""
    code = cli.main(
        ["--model=LightGCN", "--dataset=ml-100k", "--unlearn=retrain", "--epochs=2", "--eval_step=1",
         "--show_progress=False"]
    )  # fmt: skip
    assert code == 0
    (path,) = (tmp_path / "saved").glob("LightGCN-ml-100k-retrain-*/result.json")
    written = json.loads(path.read_text())
    assert written["forget"]["users"] == round(0.2 * 942)
    assert written["settings"]["val_interval"] == {"rating": "[4,inf)"}
    assert {p.name for p in tmp_path.iterdir()} == {"saved"}  # nothing is strewn about


def test_tensorboard_threads_and_handlers(settings, tmp_path):
    """Tensorboard goes to the output directory; the caller gets threads and handlers back."""
    handlers, threads = list(logging.getLogger().handlers), torch.get_num_threads()
    values = settings | {"tensorboard": True, "cache": False, "inject_mode": "random", "threads": 2, "report": "none"}
    outcome = run_unlearn("BPR", "tiny", unlearn="obliviate", config_dict=values)
    assert outcome.result["forget"]["source"] == "injected random"
    folders = {path.name: path for path in (tmp_path / "out" / "tensorboard").iterdir()}
    assert {"original", "unlearned"} <= set(folders)
    assert any(b"Unlearn/loss" in file.read_bytes() for file in folders["unlearned"].glob("*"))
    assert not (tmp_path / "log_tensorboard").exists()
    assert (logging.getLogger().handlers, torch.get_num_threads()) == (handlers, threads)


def test_files_and_reports_from_the_command_line(flags, tiny_path, tmp_path, capsys):
    rows = pd.read_csv(tiny_path / "tiny" / "tiny.inter", sep="\t").head(30)
    rows = rows.rename(columns=lambda name: name.split(":")[0])[["user_id", "item_id", "timestamp"]]
    rows.to_csv(tmp_path / "r.csv", index=False)
    request = f"--forget={tmp_path / 'r.csv'}"
    for name, method in (("one", "retrain"), ("two", "obliviate")):
        given = flags(output_dir=str(tmp_path / "runs" / name))
        assert cli.main(["--model=BPR", "--dataset=tiny", f"--unlearn={method}", request, *given]) == 0
        out, err = capsys.readouterr()
        assert ("Share of retraining recovered" in out) == (method == "retrain")
        folder = tmp_path / "runs" / name
        counts = json.loads((folder / "result.json").read_text())["forget"]
        assert counts["interactions"] + counts["valid_rows_removed"] + counts["test_rows_removed"] == 30
        log, page = ((folder / file).read_text() for file in ("run.log", "report.html"))
        assert not any(set(rows["user_id"]) & set(text.split()) for text in (out, err, log))
        assert not any(f">{token}<" in page for token in ("u1", "u2", "i1", "i2"))
        assert ("with <code>--compare=retrain</code> to have" in page) == (method == "obliviate")
    assert cli.main([f"--report={tmp_path / 'runs'}", f"--output_dir={tmp_path / 'page'}"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page" / "comparison.html")
    assert (tmp_path / "page" / "comparison.html").exists()
    for more, word in ((["--report=nothing"], "nothing"), (["--report=runs", "--model=BPR"], "--model")):
        assert cli.main(more) == 2
        assert word in capsys.readouterr().err
