r"""A request as the gradient-based methods see it: batches of S and of D\S, and the losses on both.

A model may learn by interaction (a pair, a labelled pair) or by user (an autoencoder reads and scores a whole
history). For the latter a deleted interaction has no loss of its own. What it added is the user's loss with it minus
the user's loss without:

    loss on S = mean over users of  ℓ(u; D) - ℓ(u; D\S)

Both come from the model's own training loss, the first from a model that is built on D and shares the weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import InputType, init_seed

from recbole_unlearn.data import facts_of
from recbole_unlearn.methods.base import UnlearnTask
from recbole_unlearn.rows import (
    Members,
    Region,
    RetainedIndex,
    Triples,
    Witness,
    as_batch,
    find_region,
    first_of_each,
    learns_by_user,
    training_loss,
)
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model


def tie(model: AbstractRecommender, to: AbstractRecommender) -> None:
    """Make the weights of ``model`` those of ``to``, the same tensors; what it knows about its data stays its own."""
    others = dict(to.named_modules())
    for name, module in model.named_modules():
        for key in module._parameters:
            module._parameters[key] = others[name]._parameters[key]
        for key in module._buffers.keys() - module._non_persistent_buffers_set:
            module._buffers[key] = others[name]._buffers[key]


class RequestLosses:
    """The interactions of one request, and a generator for all that is drawn."""

    def __init__(self, task: UnlearnTask, model: AbstractRecommender) -> None:
        r"""``model`` is built on D\S. It is put into evaluation mode: without dropout a loss is one function."""
        index = task.index
        self.config, self.data, self.index, self.model = task.config, task.data, index, model
        forget = task.data.forget
        self.users, self.items = (
            forget.inter_feat[field].cpu() for field in (forget.uid_field, forget.iid_field)
        )
        self.retained = RetainedIndex(index, self.users, self.items, task.data.deleted)
        self.region = find_region(index, self.users, self.items, task.data.lost)
        self.generator = torch.Generator().manual_seed(task.config["seed"])
        self.by_user = learns_by_user(task.config)
        self.facts = facts_of(task.data.retain.train, task.config["NEG_PREFIX"])
        self._before: AbstractRecommender | None = None
        still(model, self.config)

    def before(self) -> AbstractRecommender:
        """The model on D with the same weights, as the tensors of ``model``."""
        if self._before is None:
            self._before = build_model(self.config, self.data.full)
            tie(self._before, self.model)
            still(self._before, self.config)
        return self._before

    def witness(self, region: Region | None = None) -> Witness:
        """Batches of retained interactions for a region, by default that of the request."""
        return Witness(self.config, self.retained, region or self.region, self.generator, facts=self.facts)

    def deleted_rows(self) -> torch.Tensor:
        """Numbers of the interactions of S whose losses make up the loss on S: all, or one for each user."""
        return first_of_each(self.users) if self.by_user else torch.arange(len(self.users))

    def kept_units(self, interactions: torch.Tensor) -> torch.Tensor:
        """Of ``interactions`` of D, those that a loss counts: all, or one for each user."""
        if not self.by_user:
            return interactions
        return interactions[first_of_each(self.index.ids["user"][interactions])]

    def deleted_batch(self, chosen: torch.Tensor) -> Interaction:
        """Interactions of S with uniform negatives, in the form the model's loss takes."""
        drawn = self.retained.negatives(self.users[chosen], self.generator)
        batch = as_batch(self.config, self.data.forget, chosen, drawn)
        if self.facts is not None:
            batch.update(self.facts.batch(torch.full_like(chosen, -1), self.generator))
        return batch

    def deleted_loss(self, chosen: torch.Tensor, model: AbstractRecommender | None = None) -> torch.Tensor:
        """The mean loss on some interactions of S; that of ``model`` where it learns by interaction."""
        batch = self.deleted_batch(chosen)
        if self.by_user:
            return training_loss(self.before(), batch) - training_loss(self.model, batch)
        return training_loss(model or self.model, batch)

    def fixed_batch(self, region: Region, size: int) -> tuple[Interaction, int]:
        """``size`` of the retained interactions that touch a region, and the number of all that do.

        An interaction touches it by its user, its item, or the negative that training would draw for it.
        """
        witness = self.witness(region)
        triples = witness.triples(self.kept_units(witness.interactions()))
        if not self.by_user and len(region["item"]):
            more = witness.against_region(witness.extra())
            new = ~(region["user"].contains(more.users) | region["item"].contains(more.items))
            triples = Triples(*(torch.cat(pair) for pair in zip(triples, more.part(new), strict=True)))
        number = len(triples.numbers)
        chosen = torch.randperm(number, generator=self.generator)[:size]
        return witness.batch(triples.part(chosen)), number

    def kept_sample(self, size: int) -> Interaction:
        """``size`` of all retained interactions, uniform, as one batch."""
        witness = self.witness()
        chosen = self.kept_units(witness.buffer(min(1.0, size / self.retained.size)))
        return witness.batch(witness.triples(chosen))


def turned(config: UnlearnConfig, batch: Interaction) -> Interaction:
    """The same batch with its positives turned round: items change places with their negatives, or are labelled 0."""
    values = dict(batch.interaction)
    if config["MODEL_INPUT_TYPE"] == InputType.PAIRWISE:
        prefix = config["NEG_PREFIX"]
        for key in [key for key in values if prefix + key in values]:
            values[key], values[prefix + key] = values[prefix + key], values[key]
    else:
        values[config["LABEL_FIELD"]] = torch.zeros_like(values[config["LABEL_FIELD"]])
    return Interaction(values)


def still(model: AbstractRecommender, config: UnlearnConfig) -> None:
    """Evaluation mode. Training mode comes first: some models (SGL) draw there what their loss needs."""
    init_seed(config["seed"], config["reproducibility"])
    model.train()
    model.eval()


def with_rows_left(region: Region) -> Region:
    """Those of a region that are not orphans: orphans get their initial rows, so no step of theirs would stay."""
    return _only(region, {side: members.share < 1.0 for side, members in region.items()})


def losers(region: Region, share: float) -> Region:
    """Those of a region that lost more than ``share`` of their interactions."""
    return _only(region, {side: members.share > share for side, members in region.items()})


def _only(region: Region, inside: Mapping[str, torch.Tensor]) -> Region:
    chosen = Region()
    for side, members in region.items():
        chosen[side] = Members(members.ids[inside[side]], members.share[inside[side]])
    return chosen
