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
import functools
from collections.abc import Iterator
from typing import Any, Self

import torch
from recbole.data.dataloader import TrainDataLoader
from recbole.model.general_recommender.bpr import BPR
from recbole.sampler import Sampler
from torch.optim import Adam

from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import TrainIndex
from recbole_unlearn.training.fast_models import LightGCN

MANY = 2**23  # parameters from which on only rows of the batch are read and written in a step
DRAWN = 2**22  # negatives drawn at once, at most
FORGOTTEN = 300  # steps after which Adam's mean of gradients moves a row no more: (β₁ / √β₂)³⁰⁰ < 1e-13


class Negatives:
    """Draws items as RecBole's sampler does: of its distribution, and again while the user has seen the item."""

    def __init__(self, sampler: Sampler, generator: torch.Generator) -> None:
        self._seen, self._generator = TrainIndex(sampler.datasets[0]), generator
        self._items = torch.arange(1, sampler.item_num)
        self._kept: torch.Tensor | None = None
        if sampler.distribution == "popularity":  # RecBole's alias table: keep the first item, or take the other
            first = list(sampler.prob)
            self._items = torch.tensor(first)
            self._kept = torch.tensor([sampler.prob[item] for item in first], dtype=torch.float64)
            self._others = torch.tensor([sampler.alias[item] for item in first])

    def __call__(self, users: torch.Tensor) -> torch.Tensor:
        """An item for each user (m,)."""
        items = self._any(len(users))
        left = self._seen.has(users, items).nonzero().flatten()
        while len(left):
            items[left] = self._any(len(left))
            left = left[self._seen.has(users[left], items[left])]
        return items

    def _any(self, size: int) -> torch.Tensor:
        place = torch.randint(0, len(self._items), (size,), generator=self._generator)
        if self._kept is None:  # uniform
            return self._items[place]
        at_random = torch.rand(size, generator=self._generator, dtype=torch.float64)
        return torch.where(at_random < self._kept[place], self._items[place], self._others[place])


Tables = tuple[torch.Tensor, torch.Tensor]  # of users and of items
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # users, items and negatives of a batch


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

    def __init__(self, model: BPR, optimizer: torch.optim.Optimizer) -> None:
        self._gamma, self._optimizer = model.loss.gamma, optimizer
        self._weights = (model.user_embedding.weight, model.item_embedding.weight)
        self._sums = (torch.empty_like(self._weights[0]), torch.empty_like(self._weights[1]))

    def loss(self, triple: Triple) -> torch.Tensor:
        """The loss of a batch; the gradients of the weights are set."""
        for weight, total in zip(self._weights, self._sums, strict=True):
            weight.grad = total.zero_()
        return bpr_step(self._weights, triple, self._gamma, self._sums)

    def finish(self) -> None:
        """The end of an epoch."""
        self._optimizer.zero_grad()


class LightGCNSteps(BPRSteps):
    """Steps of LightGCN, in four tensors that are used again."""

    def __init__(self, model: LightGCN, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer, self._gamma = model, optimizer, model.mf_loss.gamma
        self._weights = (model.user_embedding.weight, model.item_embedding.weight)
        self._parts = [len(weight) for weight in self._weights]
        self._ego, self._total, *self._spare = (torch.cat(self._weights) for _ in range(4))

    def loss(self, triple: Triple) -> torch.Tensor:
        """BPR's loss on Z and RecBole's penalty, λ/b (‖W_u‖ + ‖W_i‖ + ‖W_j‖), or of halved squares."""
        model = self._model
        torch.cat(self._weights, out=self._ego)
        final = model.propagated(self._ego, *self._spare).split(self._parts)
        loss = bpr_step(final, triple, self._gamma, self._total.zero_().split(self._parts))
        gradients = model.propagated(self._total, *self._spare).split(self._parts)
        for side, ids in zip((0, 1, 1), triple, strict=True):
            rows, scale = self._weights[side].index_select(0, ids), model.reg_weight / len(ids)
            square = rows.square().sum(dim=1).sum()  # by rows: the same with any number of threads
            size = square / 2 if model.require_pow else square.sqrt()
            gradients[side].index_add_(
                0, ids, rows.mul_(scale if model.require_pow else scale / size.clamp(min=1e-30))
            )
            loss += scale * size
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        return loss


class RowSteps(BPRSteps):
    r"""Steps of BPR with many rows: Adam reads and writes only the rows of a batch.

    A row without a gradient still moves, by the mean of its earlier gradients. It is brought up to date when a batch
    has it again, and at the end of an epoch. In k steps after t₀ its moments m and v become β₁ᵏ m and β₂ᵏ v, and the
    row moves by

        −m / (√v + ε √(1−β₂^t₀)) · Σ_s lr_s √(1−β₂ˢ) / (1−β₁ˢ) (β₁ / √β₂)^(s−t₀)        s = t₀+1, ..., t₀+k

    which is Adam's sum, but for the growth of ε against √v over the few steps that count.
    """

    def __init__(self, model: BPR, optimizer: Adam) -> None:
        self._gamma, self._optimizer = model.loss.gamma, optimizer
        self._weights = tuple(weight.data for weight in (model.user_embedding.weight, model.item_embedding.weight))
        self._group = optimizer.param_groups[0]
        self._states = [optimizer.state[parameter] for parameter in self._group["params"]]
        for state, weight in zip(self._states, self._weights, strict=True):
            if not state:
                state |= {"step": torch.tensor(0.0)}
                state |= {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        self._step = int(self._states[0]["step"])
        self._current = [torch.full((len(weight),), self._step) for weight in self._weights]  # t₀ of each row
        self._first = self._step  # rows are up to date with at least this step
        self._moves = torch.zeros(1, dtype=torch.float64)  # the sum of this class, by t₀ − the first

    def loss(self, triple: Triple) -> torch.Tensor:
        """The loss of a batch; the rows of the batch have made the step."""
        users, of_user = torch.unique(triple[0], return_inverse=True)
        items, places = torch.unique(torch.cat(triple[1:]), return_inverse=True)
        held = [self._read(side, rows) for side, rows in enumerate((users, items))]
        rows = held[0][0], held[1][0]
        sums = torch.zeros_like(rows[0]), torch.zeros_like(rows[1])
        loss = bpr_step(rows, (of_user, *places.chunk(2)), self._gamma, sums)
        self._step += 1
        (one, two), rate, step = self._group["betas"], float(self._group["lr"]), self._step
        root = (1.0 - two**step) ** 0.5
        rate *= root / (1.0 - one**step)
        for side, ids in enumerate((users, items)):
            weight, mean, square = held[side]
            mean.lerp_(sums[side], 1.0 - one)
            square.mul_(two).addcmul_(sums[side], sums[side], value=1.0 - two)
            weight.addcdiv_(mean, square.sqrt().add_(self._group["eps"] * root), value=-rate)
            self._write(side, ids, held[side])
            self._states[side]["step"] += 1
        self._moves = torch.cat([self._moves, self._moves.new_zeros(1)])
        late = self._moves[:-1][-FORGOTTEN:]
        late += rate * (one / two**0.5) ** torch.arange(len(late), 0, -1, dtype=torch.float64)
        return loss

    def _read(self, side: int, rows: torch.Tensor) -> list[torch.Tensor]:
        """Weights and moments (m, d) of rows, up to date."""
        state, (one, two) = self._states[side], self._group["betas"]
        every = self._weights[side], state["exp_avg"], state["exp_avg_sq"]
        weight, mean, square = (values.index_select(0, rows) for values in every)
        since = self._current[side][rows]
        late = (self._step - since).double()
        moved = self._moves[since - self._first]
        small = self._group["eps"] * (1.0 - two ** since.double()).sqrt()
        weight -= (moved[:, None].float() * mean) / (square.sqrt() + small.float()[:, None]).clamp(min=1e-30)
        return [weight, mean * (one**late)[:, None].float(), square * (two**late)[:, None].float()]

    def _write(self, side: int, rows: torch.Tensor, values: list[torch.Tensor]) -> None:
        state = self._states[side]
        for table, value in zip((self._weights[side], state["exp_avg"], state["exp_avg_sq"]), values, strict=True):
            table.index_copy_(0, rows, value)
        self._current[side][rows] = self._step

    def finish(self) -> None:
        """The end of an epoch: all rows are brought up to date."""
        for side, weight in enumerate(self._weights):
            for rows in torch.arange(len(weight)).split(2**16):
                self._write(side, rows, self._read(side, rows))
        self._first, self._moves = self._step, torch.zeros(1, dtype=torch.float64)


STEPS: dict[type, type[BPRSteps]] = {BPR: BPRSteps, LightGCN: LightGCNSteps}  # a subclass may have another loss


class LeanLoop:
    """Epochs of one trainer over one loader."""

    def __init__(self, trainer: Any, loader: TrainDataLoader, kind: type[BPRSteps]) -> None:
        self.loader, self._trainer = loader, trainer
        self._steps = kind(trainer.model, trainer.optimizer)
        self._negatives = Negatives(loader._sampler, loader.generator)

    @classmethod
    def of(cls, trainer: Any, loader: Any) -> Self | None:
        """None for a model without written-out steps, and where RecBole draws or steps in another way."""
        kind, optimizer, config = STEPS.get(type(trainer.model)), trainer.optimizer, trainer.config
        if kind is None or type(loader) is not TrainDataLoader or type(loader._sampler) is not Sampler:
            return None
        drawn, sampler, weights = loader.neg_sample_args, loader._sampler, list(trainer.model.parameters())
        is_other = (
            trainer.clip_grad_norm, trainer.enable_amp, trainer.enable_scaler, not config["single_spec"],
            drawn.get("dynamic", False), drawn["distribution"] != sampler.distribution,
            sampler.phase != sampler.phases[0], not all(weight.requires_grad for weight in weights),
        )  # fmt: skip
        if any(is_other):
            return None
        group, size = optimizer.param_groups[0], sum(weight.numel() for weight in weights)
        is_plain = type(optimizer) is Adam and not group["weight_decay"] and weights[0].device.type == "cpu"
        return cls(trainer, loader, RowSteps if kind is BPRSteps and is_plain and size >= MANY else kind)

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
                trainer.optimizer.step()  # RowSteps leave no gradients: then it only calls the hooks
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


@functools.cache
def _fuses() -> bool:
    """Whether this version of torch has Adam in one pass on the CPU."""
    try:
        Adam([torch.zeros(1, requires_grad=True)], fused=True)
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def fused(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Adam in one pass over each tensor; its saved state does not tell, so that any version of torch continues it."""
    plain = type(optimizer) is Adam and _fuses()
    groups = [g for g in optimizer.param_groups if plain and all(p.device.type == "cpu" for p in g["params"])]
    before = [group["fused"] for group in groups]
    for group in groups:
        group["fused"] = True
    try:
        yield
    finally:
        for group, was in zip(groups, before, strict=True):
            group["fused"] = was
