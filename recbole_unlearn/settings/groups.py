"""All keys but those of methods: the settings of a run, a sweep and a grid, and RecBole's own."""

import dataclasses
from typing import Any, NamedTuple

from recbole_unlearn.settings.declare import Role, setting

# fmt: off


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """How one run is done and where its results go."""

    unlearn: str = setting(
        "Unlearning method; auto is the quickest exact one for the model (downdate, rebuild or retrain). --unlearn=? "
        "lists them.", role=Role.SUBJECT,
    )
    compare: list[str] = setting(
        "Methods to compare with, for example retrain (the reference for all figures).", role=Role.SUBJECT
    )
    start: str = setting(
        "Where trainings start: random rows, or spectral ones, from a factorization of the training interactions, "
        "after which a few epochs are enough (docs/method.md).", choices=("random", "spectral"),
    )
    checkpoint: str | None = setting(
        "A checkpoint of RecBole to start from; model, dataset and settings are read from it.",
        role=Role.PLACE, per_run=False,
    )
    output_dir: str | None = setting(
        "Where result.json, the log and the unlearned model go; by default a new folder in saved/.",
        role=Role.PLACE, per_run=False,
    )
    replace: bool = setting(
        "Replace the result of an earlier run in OUTPUT_DIR; its unlearned model is removed.", role=Role.SPEED
    )
    save_unlearned: bool = setting(
        "Write the unlearned checkpoint and the retained data in RecBole's format.", role=Role.SPEED
    )
    threads: int | str = setting(
        "CPU threads of torch, or auto: the fastest number by a short probe. Rounding may differ with the number.",
        words=("auto",), low=1, high=1024,
    )
    workers: int | None = setting(
        "Models trained at a time; 1 never starts Ray, empty starts it on this machine when that saves time.",
        low=1, role=Role.SPEED, per_run=False,
    )
    ray_address: str | None = setting(
        "A Ray cluster to work on (for example auto, or ray://HOST:10001); docs/many-runs.md.",
        role=Role.PLACE, per_run=False,
    )
    tensorboard: bool = setting("Write training curves to OUTPUT_DIR/tensorboard.", role=Role.SPEED)
    report: str = setting(
        "html writes OUTPUT_DIR/report.html, none does not; DIR1,DIR2,... compares the results in those directories.",
        role=Role.SPEED,
    )
    download_url: str | None = setting(
        "Zip file to fetch a missing dataset from, instead of RecBole's own list.", role=Role.PLACE
    )


@dataclasses.dataclass(frozen=True)
class ForgetSettings:
    """Which interactions are to be forgotten."""

    forget: str = setting(
        "A file of deletion requests (.csv, .tsv, .jsonl, .parquet), or 'injected' for the "
        "paper's synthetic protocol.", role=Role.PLACE, per_run=False,
    )
    on_missing: str = setting(
        "A request for an interaction that is not in the training data: stop, or skip it.",
        choices=("error", "skip"),
    )
    inject_mode: str = setting(
        "injected: items the clean model scores low, or any unseen items.", choices=("informed", "random")
    )
    inject_users: float = setting("injected: share of users.", low=0.0, high=1.0)
    inject_amount: float = setting(
        "injected: interactions per user, as a share of those they have in training.", low=0.0
    )
    inject_pool: float = setting(
        "injected, informed: share of a user's unseen items, lowest scores first, to draw from.", low=0.0, high=1.0,
    )


@dataclasses.dataclass(frozen=True)
class RecordSettings:
    """How a result is identified later."""

    request_id: str | None = setting(
        "A name for this run in result.json (letters, digits, -_.); a random one when empty.",
        role=Role.SUBJECT, per_run=False,
    )
    hash_key: str | None = setting(
        "A file with the key of the hashes in result.json; when empty, RECBOLE_UNLEARN_KEY, or a key that is made in "
        "~/.config/recbole_unlearn.", role=Role.PLACE, per_run=False,
    )


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """How forgetting is measured."""

    demotion_negatives: int = setting(
        "Demotion rate: never-touched items each deleted item is compared with.", low=1
    )
    placebo: bool = setting(
        "With a retrained model to compare with: also run the method on that model, which never saw the deleted "
        "interactions. An effect in both results is the method's own; the difference is memory."
    )
    relearn_epochs: int | str = setting(
        "With a retrained model to compare with: epochs for which copies of both models are trained on, to see what "
        "comes back; auto is 3 for BPR and LightGCN and 0 for others.", words=("auto",), low=0,
    )
    shadows: int = setting("audit: shadow models, an even number (docs/judging.md).", low=4, per_run=False)
    min_group: int = setting(
        "Users a group needs before its figures are shown; fewer could be recognised. 1 shows all, for research.",
        low=1,
    )


@dataclasses.dataclass(frozen=True)
class TuneSettings:
    """How a sweep over a method's settings is done; docs/many-runs.md."""

    tune: bool = setting("Sweep over the method's settings instead of running it once.", per_run=False)
    space: str | None = setting(
        "A YAML file with the search space, or the name of a method whose space to use; the method's own when empty.",
        role=Role.PLACE, per_run=False,
    )
    trials: int = setting("Trials of a sweep; grid search does all combinations instead.", low=1)
    searcher: str = setting("How settings are chosen.", choices=("random", "grid"))
    tune_metric: str = setting("The metric that is used as utility, on validation interactions.")
    tune_affected: float = setting(
        "Weight of affected users in utility; all users together have the rest, up to 1.", low=0.0, high=1.0
    )
    tune_weight: float = setting("Weight of forgetting against utility.", low=0.0)
    resume: bool = setting(
        "Continue the sweep in OUTPUT_DIR; finished trials are not done again.", role=Role.SPEED, per_run=False,
    )


@dataclasses.dataclass(frozen=True)
class GridSettings:
    """Many runs instead of one; docs/many-runs.md."""

    grid: str | None = setting(
        "A YAML file of models, datasets, methods, seeds and deletion ratios to run in all combinations; or smoke, "
        "machine or paper, which are in the package.", per_run=False,
    )


@dataclasses.dataclass(frozen=True)
class CacheSettings:
    """Trained models are kept, so that a second run does not train again."""

    cache: bool = setting("Keep and reuse trained models (--no_cache turns it off).", role=Role.SPEED)
    cache_dir: str = setting("Where they are kept.", role=Role.PLACE)
    cache_size: float = setting("GiB to keep at most; the least recently used go first.", low=0.0, role=Role.SPEED)


GROUPS: dict[str, type] = {
    "Run": RunSettings, "Forget set": ForgetSettings, "Record": RecordSettings, "Evaluation": EvaluationSettings,
    "Tuning": TuneSettings, "Grid": GridSettings, "Cache": CacheSettings,
}

# fmt: on


class Known(NamedTuple):
    """A key of RecBole; one that is not listed decides figures, and has the type of its default."""

    low: float | None = None  # the least value
    whole: bool = False  # a whole number
    role: Role = Role.RESULT
    trains: bool = True  # False when it changes nothing in a trained model
    derived: bool = False  # RecBole derives it for one process on one machine; no other config gets it
    per_run: bool = True  # as in `Declared`


def _keys(keys: str, **about: Any) -> dict[str, Known]:
    return dict.fromkeys(keys.split(), Known(**about))


RECBOLE: dict[str, Known] = (
    _keys("epochs train_batch_size embedding_size train_rec_step", low=1, whole=True)
    | _keys("stopping_step n_layers train_kg_step", low=0, whole=True)
    | _keys("weight_decay learning_rate dropout_prob reg_weight", low=0.0)
    | _keys("eval_batch_size", low=1, whole=True, trains=False, derived=True)
    | _keys("seed", low=0, whole=True, role=Role.SUBJECT)
    | _keys("model dataset", role=Role.SUBJECT, derived=True)
    | _keys("data_path", role=Role.PLACE, trains=False)
    # Files that models open. Their weights depend on them, so they are part of a cache's key.
    | _keys("pre_model_path pretrain_path mf_pretrain_path mlp_pretrain_path", role=Role.PLACE)
    | _keys("warm_up xgb_model lgb_model", role=Role.PLACE)
    | _keys("config_files", role=Role.PLACE, trains=False, derived=True, per_run=False)
    | _keys("config_file device single_spec local_rank", role=Role.PLACE, derived=True)
    | _keys("checkpoint_dir gpu_id", role=Role.PLACE, trains=False, derived=True)
    # Fields that transforms of histories add.
    | _keys("MASK_INDEX MASK_ITEM_SEQ POS_ITEMS NEG_ITEMS", role=Role.PLACE, trains=False, derived=True)
    | _keys("INVERSE_ITEM_SEQ", role=Role.PLACE, trains=False, derived=True)
    | _keys("show_progress", role=Role.SPEED, trains=False, derived=True, per_run=False)
    | _keys("state", role=Role.SPEED, trains=False, derived=True)
    | _keys("use_gpu", role=Role.SPEED, trains=False)
    | _keys("wandb_project loss_decimal_place worker", trains=False)
    | _keys("save_dataset save_dataloaders log_wandb test_neg_sample_args", trains=False, derived=True)
    | _keys("dataset_save_path dataloaders_save_path", trains=False, derived=True)  # always empty in a run
    | _keys("MODEL_TYPE MODEL_INPUT_TYPE eval_type valid_metric_bigger valid_neg_sample_args", derived=True)
    | _keys("nproc world_size offset ip port", derived=True)
)
