"""`evaluate`: checkpoints and files of scores or vectors have the figures of the run that made them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recbole_unlearn import cli, evaluate_models, read_checkpoint, run_unlearn
from recbole_unlearn.data import load
from recbole_unlearn.settings import UnlearnConfig
from tests.parts import refused

GONE = {"user_id": ["u3", "u3", "u4", "u5", "u6"], "item_id": [None] * 5}


@pytest.fixture
def made(settings, plain_checkpoint, tmp_path):
    """A run with retraining, the models of both in checkpoints, its request as a file, and its settings."""
    splits = load(UnlearnConfig("BPR", "tiny", config_dict=settings)).splits
    train, rows = splits.train, np.arange(0, 120, 2)
    forget = pd.DataFrame({
        field: train.id2token(field, train.inter_feat[field].numpy()[rows]) for field in ("user_id", "item_id")
    })  # fmt: skip
    forget.to_csv(tmp_path / "gone.csv", index=False)
    values = {key: settings[key] for key in ("data_path", "cache_dir", "min_group", "show_progress", "tensorboard")}
    common = {"checkpoint": plain_checkpoint, "forget": str(tmp_path / "gone.csv")}
    run = run_unlearn(**common, unlearn="finetune", compare=["retrain"], output_dir="run", config_dict=values)
    run_unlearn(**common, unlearn="retrain", output_dir="retrained", config_dict=values | {"report": "none"})
    places = {
        "original": str(plain_checkpoint), "unlearned": "run/BPR-unlearned.pth",
        "retrained": "retrained/BPR-unlearned.pth",
    }  # fmt: skip
    return run.result, places, values | {"forget": common["forget"]}, train


def same_figures(judged, result, but=()):
    for name in ("original", "unlearned", "retrained"):
        mine, theirs = (one["phases"][name] for one in (judged, result))
        for group in ("metrics", "affected", "unaffected"):
            assert {"recall@10", "ndcg@20"} <= set(mine[group])
            assert mine[group] == pytest.approx({key: theirs[group][key] for key in mine[group]}, abs=2e-6)
        assert mine["seconds"] is None
        keys = {key for key in mine["forgetting"] if not key.startswith(("relearning", *but))}
        assert "demotion_rate" in keys
        assert ("overlap@20" in keys) == (name != "retrained")
        for key in keys:
            assert mine["forgetting"][key] == pytest.approx(theirs["forgetting"][key], abs=2e-4), key


def test_checkpoints_have_the_figures_of_the_run(made):
    result, places, values, _ = made
    command = [f"--{key}={value}" for key, value in (places | values).items()]
    assert cli.main(["evaluate", *command, "--output_dir=judged", "--relearn_epochs=3"]) == 0
    judged = json.loads(Path("judged/result.json").read_text())
    same_figures(judged, result)
    assert judged["method"] == "given"
    assert judged["verdict"] == result["verdict"]
    assert "speedup" not in judged
    assert "placebo" not in judged


def vectors(places, train):
    """Tokens and vectors of users and items by role."""
    for role, place in places.items():
        weights = read_checkpoint(place).trained.state_dict
        yield (
            role,
            {
                side: (list(train.field2id_token[f"{side}_id"][1:]), weights[f"{side}_embedding.weight"].numpy()[1:])
                for side in ("user", "item")
            },
        )


def as_arrays(folder, sides):
    for side, (tokens, rows) in sides.items():
        np.save(folder / f"{side}s.npy", rows)
        (folder / f"{side}s.txt").write_text("\n".join(tokens))


def as_scores(folder, sides):
    as_arrays(folder, sides)
    np.save(folder / "scores.npy", sides["user"][1] @ sides["item"][1].T)


def as_parquet(folder, sides):
    for side, (tokens, rows) in sides.items():
        pd.DataFrame({"token": tokens, "vector": list(rows)}).sample(frac=1).to_parquet(folder / f"{side}s.parquet")


def as_pairs(folder, sides):
    (users, p), (items, q) = sides.values()
    long = (
        pd.DataFrame(p @ q.T, index=users, columns=items).stack().rename_axis(["user_id", "item_id"]).rename("score")
    )
    long.reset_index().sample(frac=1).to_parquet(folder / "pairs.parquet")


@pytest.mark.parametrize("write", [as_arrays, as_scores, as_parquet, as_pairs])
def test_files_of_any_engine_have_them_too(made, tmp_path, write):
    result, places, values, train = made
    found = {}
    for role, sides in vectors(places, train):
        folder = tmp_path / f"own-{role}"
        folder.mkdir()
        write(folder, sides)
        found[role] = str(folder / "pairs.parquet" if write is as_pairs else folder)
    same = {"load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]}}
    judged = evaluate_models(dataset="tiny", output_dir="judged", config_dict=values | found | same)
    same_figures(judged.result, result, but=("probe",))


def test_files_that_do_not_fit_are_refused(made, tmp_path):
    _, places, values, train = made
    _, sides = next(vectors(places, train))
    same = {"load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]}, "output_dir": "judged"}

    def refuse(said, change):
        folder = tmp_path / "files"
        folder.mkdir(exist_ok=True)
        as_arrays(folder, {side: (list(tokens), rows.copy()) for side, (tokens, rows) in sides.items()})
        change(folder)
        given = dict.fromkeys(("original", "unlearned"), str(folder))
        refused(said, evaluate_models, dataset="tiny", config_dict=values | same | given)
        assert not (tmp_path / "judged").exists()

    tokens, rows = sides["user"]
    refuse("other numbers of tokens", lambda folder: (folder / "users.txt").write_text("u1\n"))
    refuse("lacks 1 values of user_id", lambda folder: as_arrays(folder, {"user": (["x", *tokens[1:]], rows)}))
    refuse(
        "the same value twice",
        lambda folder: as_arrays(folder, {"user": ([*tokens, "u1"], np.vstack([rows, rows[:1]]))}),
    )
    refuse("not finite", lambda folder: np.save(folder / "users.npy", np.full_like(rows, np.nan)))
    refuse("different lengths", lambda folder: np.save(folder / "users.npy", rows[:, :3]))
    refuse("cannot be read as a model", lambda folder: (folder / "users.npy").write_bytes(b"no array"))
    refuse(
        "cannot be read as a model", lambda folder: np.save(folder / "users.npy", np.array([[{}]]), allow_pickle=True)
    )
    mixed = {"original": places["original"], "unlearned": str(tmp_path / "files")}
    refused("like with like", evaluate_models, dataset="tiny", config_dict=values | mixed)
    refused("needs --unlearned", evaluate_models, config_dict={"original": "a.pth"})
    own = {"original": "a.pth", "unlearned": "b.pth", "forget": "injected"}
    refused("not noise", evaluate_models, config_dict=own)
    refused("recbole-unlearn evaluate", run_unlearn, "BPR", "tiny", unlearn="given", config_dict=values | same)
