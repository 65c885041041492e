"""From Python: a checkpoint on disk, and a model that is in memory already."""

import sys
import tempfile
from pathlib import Path

from train_plain import train

from recbole_unlearn import run_unlearn, unlearn_model


def main(work: Path) -> None:
    """Unlearn the same users both ways."""
    config, model, loaders, trainer = train(str(work / "saved"))
    request = {"user_id": ["196", "186"]}

    # 1. From a checkpoint; files are written to output_dir.
    outcome = run_unlearn(
        checkpoint=trainer.saved_model_file, forget=request, unlearn="obliviate", output_dir=work / "out"
    )
    print(outcome)
    print("Demotion rate of the deleted pairs:", outcome.record.unlearned.demotion_rate)

    # 2. From what you hold; nothing is read from or written to disk, and your model is left as it is.
    unlearned = unlearn_model(config, model, loaders, request, "obliviate", optimizer=trainer.optimizer)
    print(f"{len(unlearned.data.forget)} interactions forgotten in {unlearned.seconds:.2f} s.")
    print("Retained:", len(unlearned.loaders.train._dataset), "training interactions.")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    sys.argv = sys.argv[:1]
    main(target)
