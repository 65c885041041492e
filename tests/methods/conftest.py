"""Quick settings of methods, a task of one of them, a run, and regressions with known optima."""

import dataclasses
from types import SimpleNamespace

import torch
from torch.nn.functional import softplus

from recbole_unlearn import registry, run_unlearn
from recbole_unlearn import settings as plugin_settings
from recbole_unlearn.pipeline import begin
from recbole_unlearn.rows import TrainIndex
from recbole_unlearn.training import train, train_all

OF_OBLIVIATE = {"lac_steps": 6, "lac_batch_size": 64, "save_unlearned": False, "eval_step": 9}
QUICK = {
    "obliviate": OF_OBLIVIATE,
    "obliviate_paper": OF_OBLIVIATE,
    "finetune": {"finetune_epochs": 2},
    "gradient_ascent": {"gradient_ascent_steps": 8},
    "ifru": {},
    "rrl": {"rrl_steps": 8},
    "sisa": {"sisa_shards": 3},
    "receraser": {"receraser_shards": 3, "receraser_attention_epochs": 3},
}


def make_task(config, data, method, original=None, all_jobs=train_all, **changes):
    """The trainer of a method, with the weights of ``original`` if there is one, and its task."""
    cls = registry.METHODS.get(method)
    options = plugin_settings.read(cls.Settings, config.method_values(method) | QUICK[method] | changes)
    models = SimpleNamespace(train=train, train_all=all_jobs)
    trainer, task = begin(cls, options, config, data, original, models, "unlearned")
    return trainer, dataclasses.replace(task, prepared_index=TrainIndex(data.full.train).complete())


def run(settings, method, model="BPR", **changes):
    """A run on `tiny`, or from a checkpoint, without a report."""
    given = {key: changes.pop(key) for key in ("forget", "compare", "checkpoint") if key in changes}
    quick, source = ({}, (None, None)) if "checkpoint" in given else (QUICK[method], (model, "tiny"))
    return run_unlearn(*source, unlearn=method, **given, config_dict=settings | quick | {"report": "none"} | changes)


def regression(kind, seed, n=60, d=4):
    """Ridge or logistic regression with a penalty a row: its loss(θ, rows), a sum, and the optima with and without S.

    Returns the loss, the rows of S and of the rest, the optimum of all rows, and that of the rest.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (n,), generator=generator).double() * 2 - 1

    def loss(theta, rows):
        margin = x[rows] @ theta
        fit = 0.5 * (margin - y[rows]).square() if kind == "ridge" else softplus(-y[rows] * margin)
        return fit.sum() + 0.05 * len(rows) * theta.square().sum()

    def optimum(rows):
        theta = torch.zeros(d, dtype=torch.float64)
        for _ in range(30):
            at = theta.clone().requires_grad_()
            gradient = torch.autograd.grad(loss(at, rows), at)[0]
            hessian = torch.autograd.functional.hessian(lambda t: loss(t, rows), theta)
            theta = theta - torch.linalg.solve(hessian, gradient)
        return theta

    kept = torch.arange(4, n)
    return loss, torch.arange(4), kept, optimum(torch.arange(n)), optimum(kept)
