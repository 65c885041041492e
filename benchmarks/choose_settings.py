"""Settings of every method on validation rows, with the same budget for each, twelve candidates (or four): one table.

    python benchmarks/choose_settings.py --dataset=ml-100k --models=BPR,LightGCN --out=saved/choose

The request is the paper's (noise in a fifth of the users), or genuine (--request=genuine). Measured are the retained
*validation* rows; test rows are never looked at. A candidate is as good as

    ½ (min(1, NDCG@20 / retrained's) over all users + the same over affected users) - |demotion rate - retrained's|

What was measured stays in OUT/DATASET-MODEL-REQUEST.jsonl; a second call goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deletion_requests import draw
from tabulate import tabulate
from trainings import settings_of

from recbole_unlearn import settings
from recbole_unlearn.data import UnlearnData, loaders
from recbole_unlearn.log import logging_to
from recbole_unlearn.measures import Measured, Measurement
from recbole_unlearn.pipeline import Pipeline, begin
from recbole_unlearn.registry import METHODS
from recbole_unlearn.results.disclosure import Discretion
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.tuning import validation_only


def grid(**values: list) -> list[dict[str, Any]]:
    """All combinations."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


# Eight at first; then four more, where the first eight pointed to. IFRU and RecEraser had twelve as well: others
# differed in settings that are constants now (IFRU's solver, the learning rate of RecEraser's attention).
CANDIDATES = {
    "obliviate": [*grid(lua_limit=[0.35, 0.7, 1.4], rank=[16, 32]), *grid(rank=[8, 32, "full"], lac_steps=[0, 60])],
    "finetune": [
        *grid(finetune_epochs=[5, 10, 20, 40], finetune_learning_rate=[None, 0.01]),
        *grid(finetune_epochs=[10, 20], finetune_learning_rate=[0.005, 0.02]),
    ],
    "gradient_ascent": [
        *grid(gradient_ascent_tolerance=[0.02, 0.05, 0.1, 0.2], gradient_ascent_learning_rate=[0.003, 0.01]),
        *grid(
            gradient_ascent_tolerance=[0.5, 1.0],
            gradient_ascent_learning_rate=[0.003, 0.01],
            gradient_ascent_steps=[300],
        ),
    ],
    "rrl": [
        *grid(rrl_fisher=[0.1, 1.0, 10.0, 100.0], rrl_learning_rate=[0.01, 0.02]),
        *grid(rrl_fisher=[1.0, 10.0, 30.0, 100.0], rrl_learning_rate=[0.04]),
    ],
    "ifru": grid(ifru_damping=[0.02, 0.05, 0.1, 0.2]),
    "sisa": [
        *grid(sisa_learning_rate=[None, 0.002, 0.005, 0.01]),
        *grid(sisa_learning_rate=[0.0005, 0.003, 0.007, 0.02]),
    ],
    "receraser": [
        *grid(receraser_partition=["interactions", "users"], receraser_learning_rate=[None, 0.005]),
        *grid(receraser_partition=["users"], receraser_learning_rate=[0.002]),
    ],
}
# Four, around what ml-100k liked, for data where a training takes minutes.
SHORT = {
    "obliviate": grid(lua_limit=[0.35, 0.7], rank=[32, "full"]),
    "finetune": grid(finetune_epochs=[5, 20], finetune_learning_rate=[None, 0.005]),
    "gradient_ascent": grid(gradient_ascent_tolerance=[0.05, 0.1, 0.2, 0.5], gradient_ascent_steps=[300]),
    "rrl": [
        {"rrl_fisher": 1.0, "rrl_learning_rate": 0.01},
        {"rrl_fisher": 10.0, "rrl_learning_rate": 0.02},
        {"rrl_fisher": 30.0, "rrl_learning_rate": 0.04},
        {"rrl_fisher": 100.0, "rrl_learning_rate": 0.02},
    ],
    "ifru": grid(ifru_damping=[0.02, 0.05, 0.1, 0.2]),
    "sisa": grid(sisa_learning_rate=[0.002, 0.005, 0.01]),
    "receraser": grid(receraser_partition=["users"], receraser_learning_rate=[0.002, 0.005]),
}
assert all(len(own) <= 12 for own in CANDIDATES.values())
assert all(len(own) <= 4 for own in SHORT.values())


class OnValidation(Pipeline):
    """The pipeline with validation rows in the place of test rows."""

    def _data(self, forget: Any) -> UnlearnData:
        return validation_only(super()._data(forget))

    def start(self, request: Any) -> None:
        """Data, original and retrained model; nothing is kept from others, since the data is public."""
        self.data = self._data(request)
        self.discretion = Discretion.of(self.data, self.evaluation.min_group)
        test = loaders(self.config, self.data.retain)
        self.measurement = Measurement(self.config, self.data, test, self.evaluation.demotion_negatives)
        self._measure_original(*self._original)
        self._run_method(self.methods[1])

    def candidate(self, name: str, changes: dict[str, Any]) -> dict[str, float]:
        """The figures of one candidate."""
        method = METHODS.get(name)
        options = settings.read(method.Settings, self.config.method_values(name) | changes)
        trainer, task = begin(method, options, self.config, self.data, self.original, self.trainings, name)
        if method.own_original:
            trainer.originate(task)
        finished = trainer.run(task)
        return self.figures(self.measurement.measure(trainer), finished.seconds)

    def figures(self, own: Measured, seconds: float | None = None) -> dict[str, Any]:
        """What a candidate is judged by, and the attack beside it."""
        goal = self.phases["retrained"].measured
        shares = [own.utility[group]["ndcg@20"] / goal.utility[group]["ndcg@20"] for group in ("metrics", "affected")]
        gap = own.forgetting["demotion_rate"] - goal.forgetting["demotion_rate"]
        attacks = [(one.forgetting.get("attack") or {}).get("auc") for one in (own, goal)]
        return {
            "all": own.utility["metrics"]["ndcg@20"],
            "affected": own.utility["affected"]["ndcg@20"],
            "unaffected": own.utility["unaffected"]["ndcg@20"],
            "gap": gap,
            "attack": None if None in attacks else attacks[0] - attacks[1],
            "score": sum(min(1.0, share) for share in shares) / 2 - abs(gap),
            "seconds": seconds,
        }


def found_in(file: Path) -> dict[tuple[str, str], dict]:
    """What earlier calls measured, by method and candidate."""
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {(row["method"], json.dumps(row["settings"], sort_keys=True)): row for row in rows}


def rows_of(args: argparse.Namespace, model: str, names: list[str]) -> Iterator[dict]:
    """All candidates of a model, measured now or before."""
    file = Path(args.out) / f"{args.dataset}-{model}-{args.request}.jsonl"
    known = found_in(file)
    candidates = SHORT if args.short else CANDIDATES
    wanted = [(name, changes) for name in names for changes in candidates[name]]
    missing = [w for w in wanted if (w[0], json.dumps(w[1], sort_keys=True)) not in known]
    if missing:
        with tempfile.TemporaryDirectory() as work, logging_to(Path(args.out)):
            values = {
                "seed": args.seed, "show_progress": False, "tensorboard": False, "cache_size": 20.0,
                "cache_dir": str(Path(args.out) / "cache"), "checkpoint_dir": work, "compare": ["retrain"],
                "unlearn": "obliviate", "workers": 1, "min_group": 1, **settings_of(model, args.dataset),
            }  # fmt: skip
            values |= {"data_path": args.data_path} if args.data_path else {}
            config = UnlearnConfig(model, args.dataset, config_dict=values)
            pipeline = OnValidation(config, Path(args.out), Path(args.out), None)
            pipeline.start(draw(args.request, model, args.dataset, values, args.seed))
            for name in ("original", "retrained"):
                figures = pipeline.figures(pipeline.phases[name].measured)
                known[name, "{}"] = {"method": name, "settings": {}, **figures}
            for name, changes in missing:
                row = {"method": name, "settings": changes, **pipeline.candidate(name, changes)}
                known[name, json.dumps(changes, sort_keys=True)] = row
                with file.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
    yield from known.values()


def main() -> None:
    """Measure what is missing, print all candidates, the best of a method first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--models", default="BPR,LightGCN")
    parser.add_argument("--methods", default=",".join(CANDIDATES))
    parser.add_argument("--request", default="injected", choices=["injected", "genuine"])
    parser.add_argument("--short", action="store_true", help="four candidates instead of twelve")
    parser.add_argument("--seed", type=int, default=2020)
    parser.add_argument("--out", default="saved/choose")
    args = parser.parse_args()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for model in args.models.split(","):
        rows = list(rows_of(args, model, args.methods.split(",")))
        rows.sort(key=lambda row: (row["method"], -row["score"]))
        table = [
            [row["method"], json.dumps(row["settings"])[1:-1].replace('"', ""), *(row[key] for key in KEYS)]
            for row in rows
        ]
        print(f"{model} on {args.dataset}, {args.request}, seed {args.seed}, validation rows")
        print(tabulate(table, ["method", "settings", *KEYS], tablefmt="github", floatfmt=".4f"), flush=True)


KEYS = ("score", "all", "affected", "unaffected", "gap", "attack", "seconds")

if __name__ == "__main__":
    main()
