"""Faster versions of RecBole's models: the same numbers, the same state_dict, less time.

A file here registers a subclass for one model of RecBole; trainings then use it wherever RecBole's class was asked
for. A checkpoint of either loads into the other.

A model may keep training interactions beside its weights, a graph for example. Whoever serves one request after
another asks for a :func:`pair_remover`, which takes pairs out in place; other models are built again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.general_recommender.bpr import BPR
from recbole.model.general_recommender.neumf import NeuMF

from recbole_unlearn.extensions import discover

PairRemover = Callable[[torch.Tensor, torch.Tensor], None]  # takes users and items (m,)

_FAST: dict[type, type] = {}
_FILED: dict[type, str] = {}
_KEEP_NOTHING = (BPR, NeuMF)  # of their training interactions


def faster(original: type, filed_as: str | None = None) -> Callable[[type], type]:
    """Class decorator: use this subclass in place of RecBole's ``original``.

    ``filed_as`` is the name that trained models are kept under; it never changes, or all would be trained again.
    """

    def add(cls: type) -> type:
        if original in _FAST and _FAST[original].__qualname__ != cls.__qualname__:
            raise ValueError(f"There is a faster {original.__name__} already.")
        _FAST[original] = cls
        _FILED[original] = filed_as or _qualified(cls)
        return cls

    return add


@functools.cache
def _discover() -> None:
    discover(__name__)


def fast_class(model_class: type) -> type:
    """The faster version of ``model_class``, or itself when there is none."""
    _discover()
    return _FAST.get(model_class, model_class)


def filed_as(model_class: type) -> str:
    """The name under which trained models of RecBole's ``model_class`` are kept."""
    _discover()
    return _FILED.get(model_class) or _qualified(model_class)


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def pair_remover(model: AbstractRecommender) -> PairRemover | None:
    """What takes pairs out of all that ``model`` keeps of its training data; None where it has to be built again."""
    if type(model) in _KEEP_NOTHING:
        return lambda users, items: None
    make: Callable[[], PairRemover | None] | None = getattr(model, "pair_remover", None)
    # A subclass of somebody's may keep more than the class it was made from.
    return make() if make is not None and type(model) in _FAST.values() else None
