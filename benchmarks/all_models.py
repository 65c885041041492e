"""All of RecBole's models: a run of one epoch with obliviate each, in a process of its own.

    python benchmarks/all_models.py --out=saved/all_models.json
    python benchmarks/all_models.py --out=saved/all_models.json --table > models.md

What is in the file is not run again, so that a stopped run goes on where it was. `--limit` is in seconds of the
processor, so that a busy machine makes little difference. `--table` prints what was found by type, and why models
are refused: docs/supported-models.md is written from it. Other options are those of a run (`--dataset=`).
"""

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn, TextIO

from recbole.utils import get_model
from tabulate import tabulate

from recbole_unlearn import quick_start  # noqa: F401 - imported once, for all processes
from recbole_unlearn.cli import main
from recbole_unlearn.files import write_json
from recbole_unlearn.recbole_compat import anomaly_mode_kept
from recbole_unlearn.settings import model_names

ALWAYS = ["--epochs=1", "--unlearn=obliviate", "--report=none", "--cache=False", "--threads=1"]
MANY = 60  # seconds of the processor from which on a run is shown as slow


def run(arguments: list[str], limit: int, log: TextIO) -> NoReturn:
    """In a process of its own: the command line, of which ``log`` keeps what it says."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.stdout = sys.stderr = log
        code = main(arguments)
    except Exception:
        traceback.print_exc()
    finally:
        log.flush()
        os._exit(code)


def attempt(model: str, limit: int, given: list[str]) -> dict[str, Any]:
    """Run one model: its state (works, refused, failed, stopped), seconds of the processor, memory and last line."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryFile("w+") as log:
        child = os.fork()  # with all imports done
        if child == 0:
            run([f"--model={model}", f"--output_dir={out}/run", *ALWAYS, *given], limit, log)
        _, status, used = os.wait4(child, 0)  # of this child alone, with its largest memory
        code = os.waitstatus_to_exitcode(status)
        log.seek(0)
        lines = log.read().strip().splitlines() or [""]
        works = code == 0 and Path(out, "run", "result.json").is_file()
    stopped = code in (-signal.SIGXCPU, -signal.SIGKILL)
    refused = not works and not any(line.startswith("Traceback") for line in lines)
    return {
        "state": "works" if works else "stopped" if stopped else "refused" if refused else "failed",
        "seconds": round(used.ru_utime + used.ru_stime, 1),
        "mebibytes": used.ru_maxrss // 1024,
        "said": "" if works else lines[-1],
    }


def kind(model: str) -> str:
    """The type of a model, in a word; of models that need another library, what RecBole calls them."""
    with anomaly_mode_kept():
        try:
            return get_model(model).type.name.lower()
        except (ImportError, ValueError):
            return "other"


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown: by type, what works with its seconds where it takes long, and what does not."""
    kinds: dict[str, list[str]] = {}
    for model in found:
        kinds.setdefault(kind(model), []).append(model)
    lines = []
    for name, models in kinds.items():
        good = [m for m in models if found[m]["state"] == "works"]
        slow = {m: found[m]["seconds"] for m in good if found[m]["seconds"] >= MANY}
        told = [f"{m} ({slow[m]:.0f} s)" if m in slow else m for m in good]
        rest = [
            m if found[m]["state"] == "refused" else f"{m} ({found[m]['state']})" for m in models if m not in good
        ]
        lines.append((name, ", ".join(told), ", ".join(rest)))
    said = [one["said"].removeprefix("Error: ").split(". ")[0] for one in found.values() if one["state"] == "refused"]
    why = "\n".join(f"- {line}." for line in said)
    return f"{tabulate(lines, ('type', 'works', 'does not'), tablefmt='github')}\n\n{why}"


def write_all() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(model_names()))
    parser.add_argument("--limit", type=int, default=600)
    parser.add_argument("--table", action="store_true")
    args, given = parser.parse_known_args()
    found = json.loads(args.out.read_text()) if args.out.is_file() else {}
    if args.table:
        print(table(found))
        return
    for model in args.models.split(","):
        if model not in found:
            found[model] = attempt(model, args.limit, given or ["--dataset=ml-100k"])
            write_json(args.out, found)
            print(model, *found[model].values(), flush=True)


if __name__ == "__main__":
    write_all()
