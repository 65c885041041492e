"""Quick settings of methods, a task of one of them, and a run."""

from recbole_unlearn import registry, run_unlearn
from recbole_unlearn import settings as plugin_settings
from recbole_unlearn.methods import UnlearnTask
from recbole_unlearn.rows import TrainIndex
from recbole_unlearn.training import build_model, compose, train, train_all
from tests.parts import weights

OF_OBLIVIATE = {"lac_steps": 6, "lac_batch_size": 64, "save_unlearned": False, "eval_step": 9}
QUICK = {
    "obliviate": OF_OBLIVIATE,
    "obliviate_paper": OF_OBLIVIATE,
    "finetune": {"finetune_epochs": 2},
    "gradient_ascent": {"gradient_ascent_steps": 8, "gradient_ascent_batch_size": 64},
    "ifru": {"ifru_steps": 10},
    "rrl": {"rrl_steps": 8, "rrl_batch_size": 64},
    "scif": {"scif_steps": 10},
    "sisa": {"sisa_shards": 3},
    "receraser": {"receraser_shards": 3, "receraser_attention_epochs": 3},
    "ultrare": {"ultrare_shards": 3},
}


def make_task(config, data, method, original=None, all_jobs=train_all, **changes):
    """The trainer of a method, with the weights of ``original`` if there is one, and its task."""
    cls = registry.METHODS.get(method)
    net = build_model(config, data.retain)
    initial = weights(net)
    if original is not None:
        original.load_weights(net)
    options = plugin_settings.read(cls.Settings, config.method_values(method) | QUICK[method] | changes)
    index = TrainIndex(data.full.train).complete()
    task = UnlearnTask(config, data, original, initial, options, train, train_all=all_jobs, prepared_index=index)
    return compose(cls, config, net, "unlearned"), task


def run(settings, method, model="BPR", **changes):
    """A run on `tiny`, or from a checkpoint, without a report."""
    given = {key: changes.pop(key) for key in ("forget", "compare", "checkpoint") if key in changes}
    quick, source = ({}, (None, None)) if "checkpoint" in given else (QUICK[method], (model, "tiny"))
    return run_unlearn(*source, unlearn=method, **given, config_dict=settings | quick | {"report": "none"} | changes)
