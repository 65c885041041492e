r"""A lean loop for BPR and LightGCN: the same loss, optimizer and negatives as RecBole's, in less time.

RecBole's loop makes each batch in Python: it selects rows, draws negatives and looks each up in a set. Here the
negatives of an epoch are drawn at once, and gradients are written out. With s = p_u·q_i − p_u·q_j, a batch of b pairs
and RecBole's γ, BPR's loss is −Σ log(γ + σ(s)) / b, so that

    c = −σ(s) (1 − σ(s)) / (γ + σ(s)) / b,    ∂/∂p_u = c (q_i − q_j),    ∂/∂q_i = c p_u,    ∂/∂q_j = −c p_u

LightGCN's p and q are rows of Z = P W with P = (I + Â + Â² + ...)/(L+1), which is symmetric: the gradient of W is
P G, with G that of Z.

Negatives come from another random stream than RecBole's, so a model is another draw from the same distribution.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from recbole.data.dataloader import TrainDataLoader
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.general_recommender.bpr import BPR
from recbole.model.loss import BPRLoss
from recbole.sampler import Sampler
from torch.optim import Adam, Optimizer

from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import RetainedIndex, TrainIndex
from recbole_unlearn.training.fast_models import LightGCN, fast_class

DRAWN = 2**22  # negatives drawn at once, at most
MANY = 2**24  # parameters of BPR from which on a step reads and writes only the rows of its batch
FORGOTTEN = 300  # steps after which a gradient moves its row no more: (β₁ / √β₂)³⁰⁰ < 1e-13

Tables = Sequence[torch.Tensor]  # of users and of items
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # users, items and negatives of a batch


class Negatives:
    """Draws items as RecBole's sampler does: of its distribution, and again while the user has seen the item."""

    def __init__(self, sampler: Sampler, generator: torch.Generator) -> None:
        self._seen, self._generator = RetainedIndex.whole(TrainIndex(sampler.datasets[0])), generator
        self._items, self._kept = torch.arange(1, sampler.item_num), None
        if sampler.distribution == "popularity":  # RecBole's alias table: keep the first item, or take the other
            self._items, others = torch.tensor(list(sampler.alias.items())).T
            self._others = torch.where(others < 0, self._items, others)  # -1: none, but for rounding
            self._kept = torch.tensor(list(sampler.prob.values()), dtype=torch.float64)

    def __call__(self, users: torch.Tensor) -> torch.Tensor:
        """An item for each user (m,)."""
        items, left = torch.empty_like(users), torch.arange(len(users))
        while len(left):
            place = torch.randint(0, len(self._items), (len(left),), generator=self._generator)
            items[left] = self._items[place]
            if self._kept is not None:
                other = torch.rand(len(left), generator=self._generator, dtype=torch.float64) >= self._kept[place]
                items[left[other]] = self._others[place[other]]
            left = left[self._seen.are_known(users[left], items[left])]
        return items


def bpr_step(tables: Tables, triple: Triple, gamma: float, sums: Tables) -> torch.Tensor:
    """BPR's loss of a batch; its gradients are added to ``sums``, of the shapes of ``tables``."""
    users, items, negatives = triple
    own = tables[0].index_select(0, users)
    apart = tables[1].index_select(0, items) - tables[1].index_select(0, negatives)
    sigma = torch.sigmoid((own * apart).sum(dim=1))
    c = (sigma * (sigma - 1.0) / ((gamma + sigma) * len(sigma)))[:, None]
    sums[0].index_add_(0, users, apart.mul_(c))
    sums[1].index_add_(0, items, own.mul_(c)).index_add_(0, negatives, own.neg_())
    return -torch.log(gamma + sigma).mean()


class BPRSteps:
    """Steps of BPR: gradients for the optimizer."""

    def __init__(self, model: Any, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._gamma = next(part.gamma for part in model.children() if isinstance(part, BPRLoss))
        self._weights = [model.user_embedding.weight, model.item_embedding.weight]

    def loss(self, triple: Triple) -> torch.Tensor:
        """The loss of a batch; the gradients of the weights are set."""
        for weight in self._weights:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad.zero_()
        return bpr_step(self._weights, triple, self._gamma, [weight.grad for weight in self._weights])

    def finish(self) -> None:
        """The end of an epoch."""
        self._optimizer.zero_grad()


class LightGCNSteps(BPRSteps):
    """Steps of LightGCN, in tensors that are used again."""

    def __init__(self, model: LightGCN, optimizer: Optimizer) -> None:
        super().__init__(model, optimizer)
        self._ego, self._total, *self._spare = (torch.cat(self._weights) for _ in range(4))

    def loss(self, triple: Triple) -> torch.Tensor:
        """BPR's loss on Z and RecBole's penalty, λ/b (‖W_u‖ + ‖W_i‖ + ‖W_j‖), or of halved squares."""
        model, parts = self._model, [len(weight) for weight in self._weights]
        final = model.propagated(torch.cat(self._weights, out=self._ego), *self._spare).split(parts)
        loss = bpr_step(final, triple, self._gamma, self._total.zero_().split(parts))
        gradients = model.propagated(self._total, *self._spare).split(parts)
        for side, ids in zip((0, 1, 1), triple, strict=True):
            rows, scale = self._weights[side].index_select(0, ids), model.reg_weight / len(ids)
            square = rows.square().sum(dim=1).sum()  # by rows: the same with any number of threads
            size = square / 2 if model.require_pow else square.sqrt()
            loss += scale * size
            gradients[side].index_add_(0, ids, rows * (scale if model.require_pow else scale / size.clamp(min=1e-30)))
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        return loss


class RowSteps(BPRSteps):
    r"""Steps of BPR with many rows: Adam reads and writes only those of a batch.

    Adam moves a row without a gradient too, by the mean of earlier ones. Such steps are made up for when a batch has
    the row again, and at the end of an epoch. In k of them after step t the row's moments m and v become β₁ᵏ m and
    β₂ᵏ v, and it moves by

        −m / (√v + ε √(1−β₂ᵗ)) · Σ_s lr_s √(1−β₂ˢ) / (1−β₁ˢ) (β₁ / √β₂)^(s−t)        s = t+1, ..., t+k

    as with Adam, but for the growth of ε against √v in the few steps that count.
    """

    def __init__(self, model: BPR, optimizer: Adam) -> None:
        super().__init__(model, optimizer)
        self._group, self._states = optimizer.param_groups[0], [optimizer.state[weight] for weight in self._weights]
        self._tables = []  # weights, m and v by side
        for state, weight in zip(self._states, self._weights, strict=True):
            state.setdefault("step", torch.tensor(0.0))
            moments = [state.setdefault(name, torch.zeros_like(weight)) for name in ("exp_avg", "exp_avg_sq")]
            self._tables.append([weight, *moments])
        self._step = self._first = int(self._states[0]["step"])
        self._done = [torch.full((len(weight),), self._step) for weight in self._weights]  # t by row
        self._moves = torch.zeros(1, dtype=torch.float64)  # the sums above, by t less the first

    def loss(self, triple: Triple) -> torch.Tensor:
        """The loss of a batch, whose rows make their step."""
        users, of_user = triple[0].unique(return_inverse=True)
        items, of_items = torch.cat(triple[1:]).unique(return_inverse=True)
        held = [self._read(side, ids) for side, ids in enumerate((users, items))]
        sums = [torch.zeros_like(rows[0]) for rows in held]
        loss = bpr_step([rows[0] for rows in held], (of_user, *of_items.chunk(2)), self._gamma, sums)
        self._step += 1
        one, two = self._group["betas"]
        root = (1.0 - two**self._step) ** 0.5
        rate = float(self._group["lr"]) * root / (1.0 - one**self._step)
        for side, (ids, gradient) in enumerate(zip((users, items), sums, strict=True)):
            weight, mean, square = held[side]
            mean.lerp_(gradient, 1.0 - one)
            square.mul_(two).addcmul_(gradient, gradient, value=1.0 - two)
            weight.addcdiv_(mean, square.sqrt().add_(self._group["eps"] * root), value=-rate)
            self._write(side, ids, held[side])
        late = self._moves[-FORGOTTEN:]
        late += rate * (one / two**0.5) ** torch.arange(len(late), 0, -1, dtype=torch.float64)
        self._moves = torch.cat([self._moves, late.new_zeros(1)])
        return loss

    def _read(self, side: int, ids: torch.Tensor) -> list[torch.Tensor]:
        """Rows of weights, m and v, each (n, d), after the steps that they missed."""
        (one, two), done = self._group["betas"], self._done[side][ids]
        weight, mean, square = (table.index_select(0, ids) for table in self._tables[side])
        late, small = self._step - done, self._group["eps"] * (1.0 - two ** done.double()).sqrt()
        factors = (self._moves[done - self._first], small, one ** late.double(), two ** late.double())
        moved, small, fade, fade_square = (factor[:, None].to(weight) for factor in factors)
        weight -= moved * mean / (square.sqrt() + small).clamp(min=1e-30)
        return [weight, mean * fade, square * fade_square]

    def _write(self, side: int, ids: torch.Tensor, rows: list[torch.Tensor]) -> None:
        for table, values in zip(self._tables[side], rows, strict=True):
            table.index_copy_(0, ids, values)
        self._done[side][ids] = self._step

    def finish(self) -> None:
        """The end of an epoch, after which all rows have made all steps."""
        for side, state in enumerate(self._states):
            state["step"].fill_(self._step)
            for ids in torch.arange(len(self._weights[side])).split(2**16):
                self._write(side, ids, self._read(side, ids))
        self._first, self._moves = self._step, self._moves.new_zeros(1)


STEPS: dict[type, type[BPRSteps]] = {BPR: BPRSteps, LightGCN: LightGCNSteps}  # a subclass may have another loss


def is_lean(model: type[AbstractRecommender]) -> bool:
    """Whether models of a class of RecBole's have written-out steps."""
    return fast_class(model) in STEPS


class LeanLoop:
    """Epochs of one trainer over one loader."""

    def __init__(self, trainer: Any, loader: TrainDataLoader, kind: type[BPRSteps]) -> None:
        self.loader, self._trainer = loader, trainer
        self._steps = kind(trainer.model, trainer.optimizer)
        self._negatives = Negatives(loader._sampler, loader.generator)

    @classmethod
    def of(cls, trainer: Any, loader: Any) -> Self | None:
        """None for a model without written-out steps, and where RecBole draws or steps in another way."""
        kind = STEPS.get(type(trainer.model))
        if kind is None or type(loader) is not TrainDataLoader or type(loader._sampler) is not Sampler:
            return None
        drawn, sampler, weights = loader.neg_sample_args, loader._sampler, trainer.model.parameters()
        is_other = (
            trainer.clip_grad_norm, trainer.enable_amp, trainer.enable_scaler, not trainer.config["single_spec"],
            drawn.get("dynamic", False), drawn["distribution"] != sampler.distribution,
            sampler.phase != sampler.phases[0], not all(weight.requires_grad for weight in weights),
        )  # fmt: skip
        if any(is_other):
            return None
        is_adam = type(trainer.optimizer) is Adam and not trainer.optimizer.defaults["weight_decay"]
        is_large = trainer.device.type == "cpu" and sum(map(torch.numel, trainer.model.parameters())) >= MANY
        return cls(trainer, loader, RowSteps if kind is BPRSteps and is_adam and is_large else kind)

    def epoch(self) -> float:
        """Train one epoch; the sum of the losses of its batches."""
        trainer, total = self._trainer, 0.0
        trainer.model.train()
        clear_caches(trainer.model)
        with torch.no_grad(), fused(trainer.optimizer):
            for triple in self._batches():
                loss = self._steps.loss(triple)
                trainer._check_nan(loss)
                total += float(loss)
                trainer.optimizer.step()  # RowSteps leave no gradients: then it calls the hooks alone
            self._steps.finish()
        return total

    def _batches(self) -> Iterator[Triple]:
        """Each positive pair of a batch as often as it has negatives, in RecBole's order."""
        loader, device = self.loader, self._trainer.device
        feat, times = loader._dataset.inter_feat, loader.times
        order = torch.arange(len(feat))
        if loader.shuffle:
            order = torch.randperm(len(feat), generator=loader.generator)
        for some in order.split(loader.step * max(1, DRAWN // loader.step)):
            users, items = (feat[field][some] for field in (loader.uid_field, loader.iid_field))
            negatives = self._negatives(users.repeat_interleave(times)).view(-1, times)
            columns = (column.to(device).split(loader.step) for column in (users, items, negatives))
            for own, item, others in zip(*columns, strict=True):
                yield own.repeat(times), item.repeat(times), others.T.reshape(-1)


@contextlib.contextmanager
def fused(optimizer: Optimizer) -> Iterator[None]:
    """Adam in one pass over each tensor, on the CPU; what is saved of the optimizer does not tell."""
    groups = optimizer.param_groups if type(optimizer) is Adam else []
    for group in groups:
        group["fused"] = all(weight.device.type == "cpu" for weight in group["params"]) or None
    try:
        yield
    finally:
        for group in groups:
            group["fused"] = None
