"""Who is in a request, guessed from its result.json: what an attacker with the data and a model finds.

    python benchmarks/infer_members.py --sizes=10,20,50,100 --kinds=whole,part --seeds=2020,2021,2022 --out=FILE.jsonl
    python benchmarks/infer_members.py --repeat=150

A request has k random users of ml-100k, with all of their interactions or with a fifth of them. The attacker knows k
and the kind, has all interactions and the scores of one model, and so knows what each user would add to every figure.
Each figure is then an equation in the 0/1 vector of members, right up to half of the figure's last step. It is solved
by an integer program (HiGHS), by a search that swaps users from many starts, and by the best linear guess. Precision
is the share of the k guessed users that are members; chance is k / 943.

`all` are the figures with all decimals (min_group=1), `shown` those of a run with the default. The unlearned model
gives users away by itself: `alone` are the k users whose own interactions it ranks lowest, without any result.

With --repeat, requests are of one whole user each. The attacker repeats the run for every candidate and compares what
is shown; printed is how many of the drawn users have the same result.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp

from recbole_unlearn import run_unlearn
from recbole_unlearn.data import Splits, load
from recbole_unlearn.results.disclosure import Discretion, step_from
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer, compose, train_here

TOPK = (10, 20, 50)
SHARE = 0.2  # of a user's interactions, in requests of parts
DRAWS = 6  # of the parts that the attacker tries to learn what to expect
MIN_GROUP = 10


class Equation(NamedTuple):
    """Σ_u x_u coefficients[u] = value ± slack for the members x."""

    coefficients: np.ndarray
    value: float
    slack: float


class Known:
    """What the attacker knows: everybody's interactions, and how one model scores them."""

    def __init__(self, splits: Splits, trainer: PhaseTrainer) -> None:
        users, items = splits.train.user_num, splits.train.item_num
        had = np.zeros((3, users, items), dtype=bool)
        for part, split in enumerate(splits):
            fields = (split.uid_field, split.iid_field)
            had[(part, *(split.inter_feat[field].numpy() for field in fields))] = True
        self.train, self.valid, self.test = had[:, 1:]
        self.users = users - 1
        self.scores = trainer.scores(torch.arange(1, users), splits.train).cpu().numpy()
        self.scores[:, 0] = -np.inf
        real = self.scores[:, 1:]
        spread = real.std(axis=1, ddof=1, keepdims=True)
        self.relative = (self.scores - real.mean(axis=1, keepdims=True)) / spread
        self.demoted = self._demoted()

    def _demoted(self) -> np.ndarray:
        """For each training interaction, the share of never-touched items that score higher (users, items)."""
        found = np.zeros_like(self.scores)
        for user, scores in enumerate(self.scores):
            mine = self.train[user]
            others = np.sort(scores[~(mine | self.valid[user] | self.test[user])][1:])
            found[user, mine] = 1 - np.searchsorted(others, scores[mine], side="right") / len(others)
        return found

    def top(self, masked: np.ndarray) -> np.ndarray:
        """The best items of each user."""
        return np.argsort(-np.where(masked, -np.inf, self.scores), axis=1, kind="stable")[:, : max(TOPK)]

    def metrics(self, masked: np.ndarray) -> dict[str, np.ndarray]:
        """Recall and NDCG of each user."""
        hits = np.take_along_axis(self.test, self.top(masked), 1)
        number = self.test.sum(axis=1)
        gains = 1 / np.log2(np.arange(2, max(TOPK) + 2))
        ideal = np.concatenate([[1.0], gains.cumsum()])
        found = {f"recall@{k}": hits[:, :k].sum(axis=1) / np.maximum(number, 1) for k in TOPK}
        return found | {
            f"ndcg@{k}": (hits[:, :k] * gains[:k]).sum(axis=1) / ideal[np.minimum(number, k)] for k in TOPK
        }

    def of_deleted(self, deleted: np.ndarray, edges: list[float]) -> dict[str, np.ndarray]:
        """What each user would add to the figures of deleted pairs."""
        hits = np.take_along_axis(deleted, self.top((self.train & ~deleted) | (self.valid & ~self.gone)), 1)
        found = {f"resurfacing@{k}": hits[:, :k].sum(axis=1) for k in TOPK}
        found["demotion_rate"] = (self.demoted * deleted).sum(axis=1)
        users, items = deleted.nonzero()
        if edges:
            place = np.searchsorted(edges, self.relative[users, items], side="right") - 1
            bins = np.zeros((self.users, len(edges) - 1))
            np.add.at(bins, (users, place.clip(0, len(edges) - 2)), 1)
            found |= {f"bin {n}": column for n, column in enumerate(bins.T)}
        return {key: value.astype(float) for key, value in found.items()}

    gone: np.ndarray = np.zeros((), dtype=bool)  # held-out interactions that leave with the deleted ones


def half(step: float, over: int) -> float:
    """How far a sum over users may be from a mean that is shown in steps."""
    return step * over / 2


def equations(known: Known, result: dict[str, Any], phase: str, kind: str) -> list[Equation]:
    """All figures of a phase that are sums over the members, as the attacker reads them."""
    figures, forget = result["phases"][phase], result["forget"]
    k, n, rounded = forget["users"], known.users, "withheld" in result
    whole = kind == "whole"
    known.gone = known.valid if whole else np.zeros((), dtype=bool)
    masks = known.train | known.valid
    usual, found = known.metrics(masks), []
    sizes = np.rint((1.0 if whole else SHARE) * known.train.sum(axis=1)).clip(min=1)
    number = forget["interactions"]
    slack = step_from(number / k) / 2 if rounded else 0.01
    found.append(Equation(sizes, number, slack))
    for key, had in (("valid_rows_removed", known.valid), ("test_rows_removed", known.test)):
        if whole and key in forget:
            step = step_from(max(1.0, forget[key] / k)) / 2 if rounded else 0.01
            found.append(Equation(had.sum(axis=1), forget[key], step))
    # Items without interactions leave the test set, and take a little of other users' figures with them.
    blur = 0.03 * forget.get("orphan_items", 0)
    for key, own in usual.items():
        if whole:
            step = step_from(1 / (n - k)) if rounded else 1e-6
            found.append(Equation(own, own.sum() - figures["metrics"][key] * (n - k), half(step, n - k) + blur))
        elif figures.get("unaffected"):
            step = step_from(1 / (n - k)) if rounded else 1e-6
            value = own.sum() - figures["unaffected"][key] * (n - k)
            found.append(Equation(own, value, half(step, n - k) + blur))
    return found + _of_members(known, figures, kind, sizes, number, rounded, k)


def _of_members(
    known: Known, figures: dict[str, Any], kind: str, sizes: np.ndarray, number: int, rounded: bool, k: int
) -> list[Equation]:
    """The equations of deleted pairs and of affected users; of parts, the attacker knows what to expect only."""
    rng = np.random.default_rng(0)
    shown = figures.get("distribution") or {"edges": [], "counts": []}
    draws, utility = [], []
    for _ in range(1 if kind == "whole" else DRAWS):
        deleted = known.train if kind == "whole" else _part(known.train, sizes, rng)
        draws.append(known.of_deleted(deleted, shown["edges"]))
        if kind != "whole":
            utility.append(known.metrics((known.train & ~deleted) | known.valid))
    values = {key: figures["forgetting"][key] * number for key in draws[0] if key in figures["forgetting"]}
    values |= {f"bin {n}": count for n, count in enumerate(shown["counts"])}
    step = step_from(1 / k) if rounded else 1e-6
    found = []
    for key, value in values.items():
        own = np.stack([draw[key] for draw in draws])
        noise = math.sqrt(k * own.var(axis=0).mean())
        last = 0.5 if key.startswith("bin") and not rounded else half(step, number)
        sampled = 0.03 * math.sqrt(number) if key == "demotion_rate" else 0.0  # 100 negatives a pair
        found.append(Equation(own.mean(axis=0), value, last + noise + sampled))
    for key, value in (figures.get("affected") or {}).items() if utility else ():
        own = np.stack([draw[key] for draw in utility])
        noise = math.sqrt(k * own.var(axis=0).mean())
        found.append(Equation(own.mean(axis=0), value * k, half(step, k) + noise))
    return found


def _part(had: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each user, ``sizes`` of what they have."""
    order = np.where(had, rng.random(had.shape), 2.0).argsort(axis=1).argsort(axis=1)
    return had & (order < sizes[:, None])


class System(NamedTuple):
    """All equations, in units of their slack."""

    a: np.ndarray  # (equations, users)
    b: np.ndarray
    k: int

    @classmethod
    def of(cls, found: list[Equation], k: int) -> System:
        """An equation that is met by everything within its slack is left as it is: it does no harm."""
        slack = np.array([max(one.slack, 1e-3) for one in found])
        a = np.stack([one.coefficients for one in found]) / slack[:, None]
        return cls(a, np.array([one.value for one in found]) / slack, k)

    def bits(self) -> tuple[float, float]:
        """What the figures tell of random members, and what it takes to tell all of them (both in bits).

        The first is the entropy of a normal distribution with the sums' covariance, in units of two slacks.
        """
        n = self.a.shape[1]
        rate = self.k / n
        spread = np.cov(self.a / 2) * n * rate * (1 - rate)
        values = np.linalg.eigvalsh(np.atleast_2d(spread))
        told = 0.5 * np.log2(np.maximum(2 * math.pi * math.e * values, 1.0)).sum()
        needed = math.lgamma(n + 1) - math.lgamma(self.k + 1) - math.lgamma(n - self.k + 1)
        return float(told), needed / math.log(2)

    def linear(self) -> np.ndarray:
        """E[x | b] if x were normal (n,): the best linear guess."""
        n = self.a.shape[1]
        rate = self.k / n
        apart = self.a - self.a.mean(axis=1, keepdims=True)
        spread = rate * (1 - rate)
        inner = spread * apart @ apart.T + np.eye(len(apart))
        return rate + spread * apart.T @ np.linalg.solve(inner, self.b - self.a.sum(axis=1) * rate)

    def search(self, start: np.ndarray, seconds: float, seed: int) -> np.ndarray:
        """Swap users while the squared error falls, from the linear guess and from random ones near it."""
        rng = np.random.default_rng(seed)
        squares, end = (self.a**2).sum(axis=0), time.monotonic() + seconds
        best, lowest, members = np.inf, np.argsort(-start)[: self.k], np.argsort(-start)[: self.k]
        while time.monotonic() < end and best > 1e-3 * len(self.b):
            error = self.a[:, members].sum(axis=1) - self.b
            cost = float(error @ error)
            while time.monotonic() < end:
                without = error[:, None] - self.a[:, members]
                after = (without**2).sum(axis=0)[:, None] + 2 * without.T @ self.a + squares
                after[:, members] = np.inf
                out, new = np.unravel_index(after.argmin(), after.shape)
                if after[out, new] >= cost - 1e-9:
                    break
                error, cost = without[:, out] + self.a[:, new], float(after[out, new])
                members[out] = new
            if cost < best:
                best, lowest = cost, members.copy()
            members = np.argsort(-(start / start.std() + rng.gumbel(size=len(start))))[: self.k]
        return lowest

    def program(self, seconds: float) -> np.ndarray | None:
        """The 0/1 vector with the least sum of errors; None if nothing is found in time."""
        rows, n = self.a.shape
        eye = np.eye(rows)
        limits = [
            LinearConstraint(np.c_[self.a, -eye], -np.inf, self.b),
            LinearConstraint(np.c_[self.a, eye], self.b, np.inf),
            LinearConstraint(np.r_[np.ones(n), np.zeros(rows)][None], self.k, self.k),
        ]
        found = milp(
            np.r_[np.zeros(n), np.ones(rows)],
            integrality=np.r_[np.ones(n), np.zeros(rows)],
            bounds=Bounds(0, np.r_[np.ones(n), np.full(rows, np.inf)]),
            constraints=limits,
            options={"time_limit": seconds},
        )
        return None if found.x is None else np.argsort(-found.x[:n])[: self.k]


def settings(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Of every run; the figures are all there, and what is shown is worked out afterwards."""
    return {
        "seed": seed, "show_progress": False, "tensorboard": False, "save_unlearned": False, "report": "none",
        "cache": False, "workers": 1, "min_group": 1, "replace": True, "output_dir": args.work,
        "epochs": 30, "embedding_size": 32, "learning_rate": 0.01, "eval_step": 7,
    }  # fmt: skip


def request(splits: Splits, k: int, kind: str, seed: int) -> tuple[dict[str, Any], set[int]]:
    """A request of ``k`` random users, and their rows in the attacker's table."""
    rng = np.random.default_rng([seed, k])
    train = splits.train
    users = rng.choice(np.unique(train.inter_feat[train.uid_field].numpy()), k, replace=False)
    names = {field: train.field2id_token[field] for field in (train.uid_field, train.iid_field)}
    if kind == "whole":
        return {train.uid_field: [str(names[train.uid_field][u]) for u in users]}, set(users - 1)
    columns: dict[str, list[str]] = {field: [] for field in names}
    for user in users:
        own = np.unique(train.inter_feat[train.iid_field].numpy()[train.inter_feat[train.uid_field] == user])
        for item in rng.choice(own, max(1, round(SHARE * len(own))), replace=False):
            columns[train.uid_field].append(str(names[train.uid_field][user]))
            columns[train.iid_field].append(str(names[train.iid_field][item]))
    return columns, set(users - 1)


def attack(args: argparse.Namespace, k: int, kind: str, seed: int) -> list[dict[str, Any]]:
    """One request, and what each attacker finds."""
    values = settings(args, seed)
    config = UnlearnConfig("BPR", "ml-100k", config_dict=values | {"checkpoint_dir": args.work})
    splits = load(config).splits
    wanted, members = request(splits, k, kind, seed)
    outcome = run_unlearn("BPR", "ml-100k", forget=wanted, unlearn="obliviate", config_dict=values)
    shown = Discretion.of(outcome.data, MIN_GROUP).shown(outcome.record).to_json()
    original, _ = train_here(config, splits, "original")
    unlearned = compose(PhaseTrainer, config, outcome.model, "unlearned")
    tables = {"original": Known(splits, original), "unlearned": Known(splits, unlearned)}
    views = [("original", "all", outcome.result), ("original", "shown", shown), ("unlearned", "shown", shown)]
    found = []
    for phase, view, result in views[: 1 if k < MIN_GROUP else None]:  # of fewer, nothing is left to solve
        known = tables[phase]
        system = System.of(equations(known, result, phase, kind), k)
        guess = system.linear()
        guesses = {
            "linear": np.argsort(-guess)[:k],
            "search": system.search(guess, args.seconds / 3, seed),
            "program": system.program(args.seconds),
        }
        if phase == "unlearned":
            own = known.demoted.sum(axis=1) / known.train.sum(axis=1).clip(min=1)
            guesses["alone"] = np.argsort(-own)[:k]
        told, needed = system.bits()
        hits = {name: None if who is None else len(set(who) & members) / k for name, who in guesses.items()}
        found.append({"k": k, "kind": kind, "seed": seed, "model": phase, "figures": view,
                      "equations": len(system.b), "bits": round(told), "needed": round(needed),
                      "chance": k / known.users, **hits})  # fmt: skip
    return found


def repeat(args: argparse.Namespace) -> None:
    """Requests of one user each: how many of those that are drawn have the same result."""
    values = settings(args, 2020)
    config = UnlearnConfig("BPR", "ml-100k", config_dict=values)
    train = load(config).splits.train
    tokens = np.random.default_rng(0).permutation(train.field2id_token[train.uid_field][1:])[: args.repeat]
    seen: dict[str, list[str]] = {"all": [], "shown": [], "shown, without retraining": []}
    for token in tokens:
        outcome = run_unlearn(
            "BPR", "ml-100k", forget={train.uid_field: [str(token)]}, unlearn="obliviate", compare="retrain",
            config_dict=values,
        )  # fmt: skip
        shown = Discretion.of(outcome.data, MIN_GROUP).shown(outcome.record).to_json()
        for view, result in (("all", outcome.result), ("shown", shown)):
            seen[view].append(_figures(result))
        alone = {key: phase for key, phase in shown["phases"].items() if key != "retrained"}
        seen["shown, without retraining"].append(_figures({"forget": shown["forget"], "phases": alone}))
    for view, found in seen.items():
        number = collections.Counter(found)
        alike = sorted(number[one] for one in found)
        print(
            f"{view}: of {len(found)} users, {alike.count(1)} have a unique result; the median user has "
            f"the same as {alike[len(alike) // 2] - 1} others"
        )


def _figures(result: dict[str, Any]) -> str:
    """A result without its times."""
    phases = {
        name: {key: value for key, value in phase.items() if "seconds" not in key}
        for name, phase in result["phases"].items()
    }
    level = result.get("verdict", {}).get("level")
    return json.dumps([result["forget"], phases, level, result.get("certificates")], sort_keys=True)


def main() -> None:
    """All requests, one line each as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="10,20,50,100")
    parser.add_argument("--kinds", default="whole,part")
    parser.add_argument("--seeds", default="2020,2021,2022")
    parser.add_argument("--seconds", type=float, default=60.0, help="for the program; the search has a third of it")
    parser.add_argument("--repeat", type=int, default=0, help="users, one request each")
    parser.add_argument("--out", default="saved/infer_members.jsonl")
    parser.add_argument("--work", default="saved/infer_members")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.repeat:
        repeat(args)
        return
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    for kind in args.kinds.split(","):
        for k in map(int, args.sizes.split(",")):
            for seed in map(int, args.seeds.split(",")):
                for line in attack(args, k, kind, seed):
                    print(json.dumps(line), flush=True)
                    with open(args.out, "a", encoding="utf-8") as stream:
                        stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
