"""The short runs whose results are frozen: `python -m tests.golden.runs OUT` writes what each of them gives.

They cover both kinds of request, every method, models with written-out gradients, by autograd and in closed
form, and a start from a checkpoint. What is frozen is `result.json` without times and without the machine, to
the last digit. :data:`PINNED` keeps torch and the linear algebra to instructions that all processors have; MKL
still rounds sums differently on some, so the processor is frozen too, and on another one figures are compared by
:func:`close`.

`python -m tests.golden.runs --freeze` replaces the frozen files. Do so only for a change that is meant.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

from recbole_unlearn.measures.forgetting import BINS

HERE = Path(__file__).resolve().parent
FROZEN = HERE / "frozen"
PROCESSOR = FROZEN / "processor.txt"  # on which the files beside it were made
PINNED = {
    "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0",
}  # fmt: skip
COMMON = {
    "epochs": 2, "eval_step": 1, "embedding_size": 8, "learning_rate": 0.01, "seed": 7, "show_progress": False,
    "tensorboard": False, "report": "none", "workers": 1, "inject_users": 0.05, "demotion_negatives": 20,
    "min_group": 1, "threads": 1,
}  # fmt: skip
KNOWLEDGE = "KNOWLEDGE"  # stands for a folder with ml-100k and a graph of its genres and decades
# name: (model, settings); all on ml-100k, which RecBole carries.
RUNS = {
    "bpr-obliviate": ("BPR", {
        "unlearn": "obliviate", "compare": ["retrain", "finetune", "gradient_ascent", "rrl", "ifru"],
    }),
    "lightgcn-obliviate": ("LightGCN", {
        "unlearn": "obliviate", "compare": ["obliviate_paper", "retrain", "retrain"], "inject_mode": "random",
        "lac_steps": 12,
    }),
    "bpr-sisa": ("BPR", {
        "unlearn": "sisa", "compare": ["obliviate", "receraser"], "inject_mode": "random", "epochs": 1,
    }),
    "multivae-noise": ("MultiVAE", {
        "unlearn": "obliviate", "inject_mode": "random", "lac_forget": 0.1, "lac_steps": 2,
        "mlp_hidden_size": [16], "latent_dimension": 8, "epochs": 1,
    }),
    "ease-users": ("EASE", {"unlearn": "obliviate", "forget": {"user_id": ["196", "186", "22"]}}),
    "sasrec-obliviate": ("SASRec", {
        "unlearn": "obliviate", "compare": ["retrain", "finetune", "gradient_ascent"],
        "user_inter_num_interval": "[60,90]", "MAX_ITEM_LIST_LENGTH": 5, "hidden_size": 8, "inner_size": 8,
        "n_layers": 1, "n_heads": 1, "finetune_epochs": 1, "gradient_ascent_steps": 2, "lac_steps": 10,
    }),
    "cke-obliviate": ("CKE", {
        "unlearn": "obliviate", "compare": ["retrain", "finetune", "gradient_ascent"], "kg_embedding_size": 8,
        "data_path": KNOWLEDGE, "finetune_epochs": 1, "gradient_ascent_steps": 2, "lac_steps": 10,
        "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"],
                     "kg": ["head_id", "relation_id", "tail_id"], "link": ["item_id", "entity_id"]},
    }),
    "bpr-groups": ("BPR", {
        "unlearn": "obliviate", "compare": ["retrain"], "min_group": 10, "lac_steps": 6, "on_missing": "skip",
        "forget": {"user_id": ["196", "186", "22", "244", "166", "298", "115"], "item_id": [None] * 6 + ["265"]},
    }),
}  # fmt: skip
OF_ONE_RUN = ("environment", "date", "request", "hashes")
NEXT = "bpr-next"  # starts from the checkpoint that bpr-obliviate left
STREAM = "bpr-stream"  # requests to a state of that checkpoint: the weights after each of them
ALL = [*RUNS, NEXT, STREAM]


def frozen_part(result: dict) -> dict:
    """What does not differ between two runs, one entry a figure: all but times and the machine."""
    flat: dict = {}

    def add(path: str, value: object) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                if key != "speedup" and not key.endswith("seconds"):
                    add(f"{path} / {key}" if path else key, inner)
        else:
            flat[path] = value

    add("", {key: value for key, value in result.items() if key not in OF_ONE_RUN})
    return flat


def processor() -> str:
    """Vendor, family, model and stepping: what decides which kernels MKL picks."""
    keys = ("vendor_id", "cpu family", "model", "stepping")
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if os.path.exists("/proc/cpuinfo") else []
    facts = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in lines if ":" in line)
    return " ".join(facts.get(key, "?") for key in keys)


def close(one: object, other: object) -> bool:
    """Whether two figures differ by no more than the rounding of another processor, after two epochs, explains.

    Digests of weights and the names in a ranking say nothing then. The edges of a histogram follow its outermost
    scores and may move by half a bin, and its distribution function by one score in fifty.
    """
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one == other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) <= 0.002 + 0.002 * abs(other)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        if one and all(type(value) is int for value in (*one, *other)):
            below = itertools.accumulate(a - b for a, b in zip(one, other, strict=True))
            return max(map(abs, below)) <= 0.02 * sum(other)
        if len(one) > BINS:
            return all(abs(a - b) <= (other[1] - other[0]) / 2 for a, b in zip(one, other, strict=True))
        return all(close(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and not isinstance(one, list)


def write_knowledge(folder: Path) -> None:
    """ml-100k with a graph: every item but the first is an entity with its genres and its decade."""
    import recbole

    target = folder / "ml-100k"
    shutil.copytree(Path(recbole.__file__).parent / "dataset_example" / "ml-100k", target)
    lines = (target / "ml-100k.item").read_text().splitlines()[1:]
    links, facts = ["item_id:token\tentity_id:token"], ["head_id:token\trelation_id:token\ttail_id:token"]
    for item, _, year, genres in (line.split("\t") for line in lines[1:]):
        links.append(f"{item}\te{item}")
        facts += [f"e{item}\tgenre\tg{genre}" for genre in genres.split()]
        facts.append(f"e{item}\tdecade\td{year[:3]}")
    (target / "ml-100k.link").write_text("\n".join(links) + "\n")
    (target / "ml-100k.kg").write_text("\n".join(facts) + "\n")


def run_stream(checkpoint: Path, folder: Path) -> dict:
    """Four requests to a state of ``checkpoint``, one undone: counts, weights and recommendations after each."""
    from recbole_unlearn import init_state

    key = folder.parent / "stream-key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    found: dict = {}

    def note(name: str, *more: object) -> None:
        weights = hashlib.sha256()
        for parameter, value in sorted(state.model.state_dict().items()):
            weights.update(parameter.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        found[f"{name} / weights"] = weights.hexdigest()
        for user in ("200", "305"):
            found[f"{name} / user {user}"] = state.recommend(user, 5)["item_id"].tolist()
        about = state.status()
        statuses = about.requests["status"].tolist()
        found[f"{name} / status"] = [statuses, about.deleted_share, about.drift, *more]

    with init_state(folder, checkpoint, hash_key=key, lac_steps=6) as state:
        note("init")
        requests = {
            "user": {"user_id": ["13", "42"], "item_id": [None, None]},
            "pairs": {"user_id": ["200", "200", "305"], "item_id": ["222", "50", "50"]},
            "item": {"user_id": [None], "item_id": ["100"]},
            "last": {"user_id": ["500"], "item_id": [None]},
        }
        for name, request in requests.items():
            state.submit(request, id=name)
            done = [(one.id, one.status, one.interactions, one.held_out, one.users, one.items) for one in state.run()]
            note(name, *map(list, done))
        state.rollback("pairs")
        note("undone")
        note("published", state.publish())
        state.verify()
    return found


def run_all(out: Path) -> None:
    """Do all runs and write ``out``/NAME.json for each."""
    from recbole_unlearn import run_unlearn

    def write(name: str, figures: dict) -> None:
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in figures.items()]
        (out / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")

    write_knowledge(out / "knowledge")
    for name, (model, values) in RUNS.items():
        values = {**COMMON, **values}
        if values.get("data_path") == KNOWLEDGE:
            values["data_path"] = str(out / "knowledge")
        forget = values.pop("forget", None)
        keep = {"output_dir": str(out / f"{name}-out"), "cache_dir": str(out / "cache")}
        outcome = run_unlearn(model, "ml-100k", forget=forget, config_dict={**values, **keep})
        write(name, frozen_part(outcome.result))
    checkpoint = out / "bpr-obliviate-out" / "BPR-unlearned.pth"
    values = {
        "show_progress": False, "tensorboard": False, "report": "none", "workers": 1, "lac_steps": 6, "min_group": 1,
    }  # fmt: skip
    keep = {"output_dir": str(out / "next-out"), "cache_dir": str(out / "cache")}
    outcome = run_unlearn(
        forget={"user_id": ["196", "186", "22", "244", "166", "298"]}, unlearn="obliviate",
        checkpoint=checkpoint, config_dict={**values, **keep, "on_missing": "skip", "rank": 4},
    )  # fmt: skip
    write(NEXT, frozen_part(outcome.result))
    write(STREAM, run_stream(checkpoint, out / "stream"))


def run_apart(out: Path) -> None:
    """:func:`run_all` in a process whose arithmetic is pinned."""
    from tests.conftest import run_command

    run_command([sys.executable, "-m", "tests.golden.runs", str(out)], out, **PINNED, XDG_CONFIG_HOME=f"{out}/config")


if __name__ == "__main__":
    if sys.argv[1] == "--freeze":
        with tempfile.TemporaryDirectory() as work:
            run_apart(Path(work))
            FROZEN.mkdir(exist_ok=True)
            for file in Path(work).glob("*.json"):
                (FROZEN / file.name).write_text(file.read_text())
            PROCESSOR.write_text(processor() + "\n")
    else:
        import torch

        torch.set_num_threads(1)
        target = Path(sys.argv[1]).resolve()
        target.mkdir(parents=True, exist_ok=True)
        sys.argv = sys.argv[:1]
        # Draws start from the bits of old rows, which differ between processors: here from one seed.
        fixed = {"drawn_by": lambda rows: torch.Generator().manual_seed(7)}
        one, two = "recbole_unlearn.methods.obliviate.new_start", "recbole_unlearn.state.live"
        with mock.patch.multiple(one, **fixed), mock.patch.multiple(two, **fixed):
            run_all(target)
