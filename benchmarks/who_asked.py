r"""Who asked, guessed from the unlearned model and the retained data beside it, without the original.

    python benchmarks/who_asked.py --models=BPR,LightGCN --kinds=part,ten,one,whole,state --seeds=2020,2021,2022 \
        --out=saved/who_asked.jsonl
    python benchmarks/who_asked.py --print --out=saved/who_asked.jsonl

A row that `obliviate` starts again is computed from its retained neighbours; a trained row is not. The attacker knows
the method and has no label. For every user u with retained interactions (and every item, from its users):

* `residual`: the distance of the row to a map from its retained neighbours, fitted by robust (Huber) least squares to
  all rows; a row that started again lies on the map, so the least residual is asked first;
* `norm`: how far the row's length is from that of rows of as many interactions, on either side;
* `gradient`: the gradient of the row's own retained loss (BPR, against a sample of items), large if it was not
  fitted;
* `combined`: a logistic regression of the three. The attacker trains it on a model of their own: the same kind of
  model and data, another seed, and requests of the same size that they make up.

Each is compared with rows of as many interactions (a line in log n, robust). AUC of users (items) with a deleted
interaction against all others; .5 is chance. Kinds of requests: `part`, a fifth of the interactions of 20 % of the
users; `ten`, of ten users; `one`, of one user, repeated for `--tries` users: the mean AUC, how often that user comes
first, and how often in the first ten (chance: 10 / users); `whole`, 20 % of the users with everything, where the
attacker looks for their items; `state`, as `ten`, through a state that is published. Every line also has the
retrained model's figures.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import expit
from sklearn.linear_model import HuberRegressor, LogisticRegression
from sklearn.metrics import roc_auc_score
from states import Lines, new_state
from tabulate import tabulate

from recbole_unlearn import unlearn_model
from recbole_unlearn.data import Source, Splits, load
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer, train_here

STATISTICS = ("residual", "norm", "gradient")
SHARE = 0.2  # of a user's interactions, in requests of parts
RIDGE = 2e-2  # of the map, as in `methods/obliviate/new_start.py`: the attacker has read it
ROUNDS = 20  # of iteratively reweighted least squares
NEGATIVES = 200  # items that the gradient is computed against


def features(mean: np.ndarray, number: np.ndarray) -> np.ndarray:
    """What a row may be a function of: the mean neighbour (n, d) and the number of interactions (n,)."""
    root, log = np.sqrt(number)[:, None], np.log(number)[:, None]
    return np.hstack([root * mean, log * mean, mean, root, log, np.ones_like(root)])


def robust_residuals(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """‖y − x T‖ for each row, with T by Huber's loss on that norm (n,)."""
    weight = np.ones(len(x))
    for _ in range(ROUNDS):
        scaled = x * weight[:, None]
        gram = x.T @ scaled
        gram[np.diag_indices_from(gram)] += RIDGE * gram.diagonal().mean()
        length = np.linalg.norm(y - x @ np.linalg.solve(gram, scaled.T @ y), axis=1)
        middle = np.median(length)
        weight = np.minimum(1.0, middle / np.maximum(length, 1e-12))
    return length


def beside_equals(values: np.ndarray, number: np.ndarray) -> np.ndarray:
    """How far log ``values`` are from those of rows of as many interactions, in robust standard deviations (n,)."""
    log, x = np.log(np.maximum(values, 1e-12)), np.log(number)
    line = np.c_[x, x**2]
    apart = log - HuberRegressor(max_iter=1000).fit(line, log).predict(line)
    return (apart - np.median(apart)) / (1.4826 * np.median(np.abs(apart - np.median(apart))) + 1e-12)


def row_gradients(rows: np.ndarray, others: np.ndarray, pairs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """‖∂/∂p mean −log σ(p·(q_i − q_j))‖ over a row's own links i and sampled j, for each row p (n,)."""
    sampled = others[rng.choice(len(others), min(NEGATIVES, len(others)), replace=False)]
    found = np.zeros(len(rows))
    for row in np.unique(pairs[:, 0]):
        own = others[pairs[pairs[:, 0] == row, 1]]
        missing = expit(-(own @ rows[row])[:, None] + (sampled @ rows[row])[None, :])  # 1 − σ(s_i − s_j)
        gradient = missing.mean(axis=1) @ own / len(own) - missing.mean(axis=0) @ sampled / len(sampled)
        found[row] = np.linalg.norm(gradient)
    return found


def statistics(tables: dict[str, np.ndarray], pairs: np.ndarray, side: str, seed: int = 0) -> tuple[np.ndarray, ...]:
    """The ids of a side with retained interactions ``pairs`` (m, 2), and their :data:`STATISTICS` (n, 3).

    A large value says "this one asked".
    """
    own, other = ("user", "item") if side == "user" else ("item", "user")
    pairs = pairs if side == "user" else pairs[:, ::-1]
    rows, others = tables[own], tables[other]
    number = np.bincount(pairs[:, 0], minlength=len(rows))
    total = np.zeros((len(rows), others.shape[1]))
    np.add.at(total, pairs[:, 0], others[pairs[:, 1]] - others[np.unique(pairs[:, 1])].mean(axis=0))
    ids = np.flatnonzero(number)
    count = number[ids].astype(float)
    residual = robust_residuals(features(total[ids] / count[:, None], count), rows[ids])
    norm = np.linalg.norm(rows[ids], axis=1)
    gradient = row_gradients(rows, others, pairs, np.random.default_rng(seed))[ids]
    found = [
        -beside_equals(residual, count), np.abs(beside_equals(norm, count)), beside_equals(gradient, count),
    ]  # fmt: skip
    return ids, np.stack(found, axis=1)


def ranked(found: np.ndarray) -> np.ndarray:
    """Statistics as ranks between 0 and 1, so that those of two models compare."""
    return found.argsort(axis=0).argsort(axis=0) / max(1, len(found) - 1)


def attack(
    tables: dict[str, np.ndarray], pairs: np.ndarray, asked: np.ndarray, side: str, shadow: LogisticRegression | None
) -> dict[str, Any]:
    """The AUC of each statistic, and for one who asked the place (1 is first)."""
    ids, found = statistics(tables, pairs, side)
    columns = dict(zip(STATISTICS, found.T, strict=True))
    if shadow is not None:
        columns["combined"] = shadow.decision_function(ranked(found))
    is_asked = np.isin(ids, asked)
    aucs = {name: round(float(roc_auc_score(is_asked, values)), 4) for name, values in columns.items()}
    if is_asked.sum() == 1:
        aucs |= {f"{name} place": int((v > v[is_asked]).sum() + 1) for name, v in columns.items()}
    return aucs


def tables_of(model: Any) -> dict[str, np.ndarray]:
    """The rows of BPR and LightGCN."""
    return {side: getattr(model, f"{side}_embedding").weight.detach().double().numpy() for side in ("user", "item")}


def pairs_of(splits: Splits) -> np.ndarray:
    """The training interactions (m, 2)."""
    train = splits.train
    return np.stack([train.inter_feat[field].numpy() for field in (train.uid_field, train.iid_field)], axis=1)


def request(pairs: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """The numbers of the interactions to delete."""
    users = np.unique(pairs[:, 0])
    size = {"part": len(users) // 5, "whole": len(users) // 5, "one": 1}.get(kind, 10)
    chosen = rng.choice(users, size, replace=False)
    share = 1.0 if kind == "whole" else SHARE
    own = [rng.permutation(np.flatnonzero(pairs[:, 0] == user)) for user in chosen]
    return np.concatenate([numbers[: max(1, round(share * len(numbers)))] for numbers in own])


class Case:
    """A trained model, and what an attacker would learn from its unlearned versions."""

    def __init__(self, model: str, seed: int, epochs: int, dataset: str, data_path: str | None) -> None:
        values = {"seed": seed, "epochs": epochs, "show_progress": False, "tensorboard": False, "stopping_step": 0}
        values |= {"eval_step": epochs} | ({"data_path": data_path} if data_path else {})
        self.work = tempfile.TemporaryDirectory()
        self.config = UnlearnConfig(model, dataset, config_dict=values | {"checkpoint_dir": self.work.name})
        self.source: Source = load(self.config)
        self.trainer: PhaseTrainer
        self.trainer, self.trained = train_here(self.config, self.source.splits, "original")
        self.pairs, self.seed = pairs_of(self.source.splits), seed
        self.shadows: dict[str, LogisticRegression] = {}

    def frame(self, numbers: np.ndarray) -> pd.DataFrame:
        """A request in the data's own tokens."""
        train = self.source.splits.train
        fields = (train.uid_field, train.iid_field)
        return pd.DataFrame({f: train.id2token(f, c) for f, c in zip(fields, self.pairs[numbers].T, strict=True)})

    def unlearned(self, numbers: np.ndarray, method: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The rows after a request, and the retained pairs."""
        after = unlearn_model(
            self.config, self.trainer.model, self.source.splits, self.frame(numbers), method,
            optimizer=self.trainer.optimizer,
        )  # fmt: skip
        return tables_of(after.model), pairs_of(after.data.retain)

    def exported(self, numbers: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The same by a state, after publishing."""
        with (
            tempfile.TemporaryDirectory() as work,
            new_state(Path(work), self.config, self.source, self.trained) as state,
        ):
            state.submit(self.frame(numbers))
            state.run()
            state.publish()
            tables = tables_of(state.model)
        kept = np.ones(len(self.pairs), dtype=bool)
        kept[numbers] = False
        return tables, self.pairs[kept]

    def shadow(self, kind: str, side: str) -> LogisticRegression:
        """The attacker's own logistic regression, from requests of this kind that they make up."""
        kind, draws = (kind, 1) if kind in ("part", "whole") else ("ten", 10)
        if kind not in self.shadows:
            found, is_asked = [], []
            for draw in range(draws):
                numbers = request(self.pairs, kind, np.random.default_rng([self.seed, 99, draw]))
                ids, values = statistics(*self.unlearned(numbers, "obliviate"), side)
                found.append(ranked(values))
                is_asked.append(np.isin(ids, self.pairs[numbers][:, 0 if side == "user" else 1]))
            model = LogisticRegression(class_weight="balanced")
            self.shadows[kind] = model.fit(np.concatenate(found), np.concatenate(is_asked))
        return self.shadows[kind]


def measure(case: Case, shadow: Case, kind: str, tries: int) -> dict[str, Any]:
    """The attacks on `obliviate` and on retraining for one kind of request."""
    side = "item" if kind == "whole" else "user"
    rng = np.random.default_rng([case.seed, 7])
    combine, found = shadow.shadow(kind, side), []
    for number in range(tries if kind == "one" else 1):
        numbers = request(case.pairs, kind, rng)
        asked = np.unique(case.pairs[numbers][:, 0 if side == "user" else 1])
        after = case.exported(numbers) if kind == "state" else case.unlearned(numbers, "obliviate")
        line = {"obliviate": attack(*after, asked, side, combine)}
        if number == 0:
            line["retrain"] = attack(*case.unlearned(numbers, "retrain"), asked, side, combine)
        found.append(line)
    if kind != "one":
        return found[0]
    names = [*STATISTICS, "combined"]
    places = {name: np.array([line["obliviate"][f"{name} place"] for line in found]) for name in names}
    return {
        "obliviate": {name: round(float(np.mean([line["obliviate"][name] for line in found])), 4) for name in names},
        "first": {name: round(float((place == 1).mean()), 3) for name, place in places.items()},
        "first ten": {name: round(float((place <= 10).mean()), 3) for name, place in places.items()},
        "retrain": {name: found[0]["retrain"][name] for name in names},
    }


def main() -> None:
    """One line for each model, seed and kind, as soon as it is measured; those in the file are not repeated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="BPR,LightGCN")
    parser.add_argument("--kinds", default="part,ten,one,whole,state")
    parser.add_argument("--seeds", default="2020,2021,2022")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--tries", type=int, default=25, help="users of requests of one")
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--out", default="saved/who_asked.jsonl")
    parser.add_argument("--print", action="store_true", help="the means over the seeds, as a table")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = Lines(args.out)
    for model in () if args.print else args.models.split(","):
        for seed in map(int, args.seeds.split(",")):
            keys = [
                {"model": model, "seed": seed, "kind": kind, "epochs": args.epochs, "dataset": args.dataset}
                for kind in args.kinds.split(",")
            ]
            if all(lines.find(key) for key in keys):
                continue
            case, shadow = (
                Case(model, number, args.epochs, args.dataset, args.data_path) for number in (seed, seed + 1000)
            )
            for key in keys:
                if not lines.find(key):
                    print(lines.add(key, measure(case, shadow, key["kind"], args.tries)), flush=True)
    frame = pd.json_normalize(lines.lines).drop(columns="seed")
    if args.print:
        means = frame.groupby(["model", "kind", "epochs", "dataset"], sort=False).mean()
        print(tabulate(means.T, headers="keys", floatfmt=".3f"))


if __name__ == "__main__":
    main()
