"""The short runs whose results are frozen: `python -m tests.golden.runs OUT` writes what each of them gives.

They cover both kinds of request, every method, models with written-out gradients, by autograd and in closed
form, and a start from a checkpoint. What is frozen is `result.json` without times and without the machine, to
the last digit. For that, processors must not differ: :data:`PINNED` keeps torch and the linear algebra to
instructions that all have.

`python -m tests.golden.runs --freeze` replaces the frozen files. Do so only for a change that is meant.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FROZEN = HERE / "frozen"
PINNED = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
COMMON = {
    "epochs": 2, "eval_step": 1, "embedding_size": 8, "learning_rate": 0.01, "seed": 7, "show_progress": False,
    "tensorboard": False, "report": "none", "workers": 1, "inject_users": 0.05, "demotion_negatives": 20,
    "min_group": 1,
}  # fmt: skip
# name: (model, settings); all on ml-100k, which RecBole carries.
RUNS = {
    "bpr-obliviate": (
        "BPR",
        {"unlearn": "obliviate", "compare": ["retrain", "finetune", "gradient_ascent", "rrl", "scif", "ifru"]},
    ),
    "lightgcn-obliviate": (
        "LightGCN",
        {"unlearn": "obliviate", "compare": ["obliviate_paper", "retrain", "retrain"], "inject_mode": "random",
         "lac_steps": 12},
    ),
    "bpr-sisa": (
        "BPR",
        {"unlearn": "sisa", "compare": ["obliviate", "receraser", "ultrare"], "inject_mode": "random", "epochs": 1},
    ),
    "multivae-noise": (
        "MultiVAE",
        {"unlearn": "obliviate", "inject_mode": "random", "forget_kind": "noise", "lac_steps": 2,
         "mlp_hidden_size": [16], "latent_dimension": 8, "epochs": 1},
    ),
    "ease-users": ("EASE", {"unlearn": "obliviate", "forget": {"user_id": ["196", "186", "22"]}}),
}  # fmt: skip
OF_ONE_RUN = ("environment", "date", "request", "hashes")
NEXT = "bpr-next"  # starts from the checkpoint that bpr-obliviate left


def frozen_part(result: dict) -> dict:
    """What does not differ between two runs, one entry a figure: all but times and the machine."""
    flat: dict = {}

    def add(path: str, value: object) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                if not _is_time(key):
                    add(f"{path} / {key}" if path else key, inner)
        else:
            flat[path] = value

    add("", {key: value for key, value in result.items() if key not in OF_ONE_RUN})
    return flat


def _is_time(key: str) -> bool:
    return key == "speedup" or key.endswith("seconds")


def run_all(out: Path) -> None:
    """Do all runs and write ``out``/NAME.json for each."""
    from recbole_unlearn import run_unlearn

    def save(name: str, outcome: object) -> None:
        lines = [f"{json.dumps(key)}: {json.dumps(v)}" for key, v in frozen_part(outcome.result).items()]
        (out / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")

    for name, (model, values) in RUNS.items():
        values = {**COMMON, **values}
        forget = values.pop("forget", None)
        keep = {"output_dir": str(out / f"{name}-out"), "cache_dir": str(out / "cache")}
        save(name, run_unlearn(model, "ml-100k", forget=forget, config_dict={**values, **keep}))
    checkpoint = out / "bpr-obliviate-out" / "BPR-unlearned.pth"
    values = {
        "show_progress": False,
        "tensorboard": False,
        "report": "none",
        "workers": 1,
        "lac_steps": 6,
        "min_group": 1,
    }
    keep = {"output_dir": str(out / "next-out"), "cache_dir": str(out / "cache")}
    outcome = run_unlearn(
        forget={"user_id": ["196", "186", "22", "244", "166", "298"]}, unlearn="obliviate",
        checkpoint=checkpoint, config_dict={**values, **keep, "on_missing": "skip", "rank": 4},
    )  # fmt: skip
    save(NEXT, outcome)


def run_apart(out: Path) -> None:
    """:func:`run_all` in a process whose arithmetic is pinned."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.runs", str(out)], cwd=HERE.parent.parent,
        env={**os.environ, **PINNED, "XDG_CONFIG_HOME": str(out / "config")}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])


if __name__ == "__main__":
    if sys.argv[1] == "--freeze":
        with tempfile.TemporaryDirectory() as work:
            run_apart(Path(work))
            FROZEN.mkdir(exist_ok=True)
            for file in Path(work).glob("*.json"):
                (FROZEN / file.name).write_text(file.read_text())
    else:
        import torch

        torch.set_num_threads(1)
        target = Path(sys.argv[1]).resolve()
        target.mkdir(parents=True, exist_ok=True)
        sys.argv = sys.argv[:1]
        run_all(target)
