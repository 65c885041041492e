"""Relearning: what comes back when training goes on was not forgotten.

A copy of the model is trained for a few more epochs on the retained interactions, with a new optimizer and the
model's own learning rate, and is asked the same questions after each of them. The retrained model is trained on in
the same way: its figures after as many epochs are the goal.
"""

from recbole.utils import ModelType, init_seed

from recbole_unlearn.data import UnlearnData, loaders
from recbole_unlearn.measures.base import View, measure
from recbole_unlearn.measures.forgetting import GAP, gap, mean, membership
from recbole_unlearn.measures.scores import Observation, Questions, observe
from recbole_unlearn.recbole_compat import own_randomness
from recbole_unlearn.results.schema import Curve, Figure
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer, is_lean, loaded

AUTO_EPOCHS = 3  # of models whose epochs take less time than their measurement


def relearning_epochs(config: UnlearnConfig) -> int:
    """The setting `relearn_epochs`; auto is 3 for models with a lean loop, 0 for others. A closed form has none."""
    asked = config["relearn_epochs"]
    epochs = AUTO_EPOCHS * is_lean(config.model_class) if asked == "auto" else int(asked)
    return 0 if config["MODEL_TYPE"] == ModelType.TRADITIONAL else epochs


def relearned(trainer: PhaseTrainer, questions: Questions, data: UnlearnData, epochs: int) -> tuple[Observation, ...]:
    """The answers of a copy of the trainer's model after each of ``epochs`` epochs on the retained interactions."""
    if not epochs:
        return ()
    config, found = trainer.config.without_curves().replace(output_dir=None), []
    with own_randomness():
        again = loaded(config, data.retain, trainer.label, trainer.snapshot())
        init_seed(config["seed"], config["reproducibility"])
        train = loaders(config, data.retain).train
        for epoch in range(epochs):
            again._train_epoch(train, epoch)
            found.append(observe(again, questions, data.retain))
    return tuple(found)


def curves(questions: Questions, seen: Observation) -> dict[str, Curve]:
    """Demotion rate and the attack's AUC after each epoch, from the model as it was; for the report."""
    points: dict[str, Curve] = {"relearned_demotion": [], "relearned_attack": []}
    for epoch, one in enumerate([seen, *seen.relearned] if seen.relearned else []):
        if len(questions.deleted):
            points["relearned_demotion"].append((epoch, mean(one.deleted.demoted)))
        if attack := membership(questions, [(one.deleted, one.held_out)]):
            points["relearned_attack"].append((epoch, attack["auc"]))
    return {kind: curve for kind, curve in points.items() if curve}


@measure(
    "relearning", title="Relearning", parts={"demotion_rate": ": demotion rate", "auc": ": attack AUC"}, place=4,
    meaning="the same figures after a few more epochs of training on the retained interactions",
    good="the retrained model's after as many", discloses={"demotion_rate": "compared", "*": "matched"},
)  # fmt: skip
def _relearning(view: View) -> dict[str, Figure]:
    if not view.seen.relearned or len(view.questions.deleted) == 0:
        return {}
    last = view.seen.relearned[-1]
    attack = membership(view.questions, [(last.deleted, last.held_out)]) or {}
    return {"relearning": {"demotion_rate": mean(last.deleted.demoted), **attack}}


@measure(
    "relearning_gap", title="Relearning: demotion gap", parts=GAP, is_distance=True, place=5,
    meaning="demotion rate after these epochs minus the retrained model's, and its standard error over users",
    good="0, within twice its error; less is memory that comes back",
)  # fmt: skip
def _relearning_gap(view: View) -> dict[str, Figure]:
    if not view.seen.relearned or not view.target.relearned:
        return {}
    mine, target = (one.relearned[-1].deleted.demoted for one in (view.seen, view.target))
    return gap("relearning_gap", mine, target, view.questions.deleted.users)
