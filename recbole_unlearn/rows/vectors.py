"""The vectors of users and items whose dot product is the score, wherever a model keeps them.

They are looked for in what the model keeps and makes (BPR has them in its tables, LightGCN and NGCF in the result of
their propagation), not by a list of models, and taken if

    |p_u · q_i − score(u, i)| ≤ 1e-4 · max |score|    for some users u and items i.

A model with a bias for each item (matrix factorization with biases) has vectors with one more dimension, (p_u, 1) and
(q_i, b_i); a bias of the user, or of all, changes no ranking and is left out. NeuMF, MultiVAE and EASE have none.
"""

import inspect
import itertools
from collections.abc import Iterator, Sequence

import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender, GeneralRecommender

from recbole_unlearn.rows.index import Side
from recbole_unlearn.rows.model_loss import pair_scores
from recbole_unlearn.rows.tables import Table, as_rows, find_tables

COMPARED, CLOSE = 32, 1e-4  # users, and items, whose scores are compared; how near they are
Vectors = tuple[torch.Tensor, torch.Tensor]  # of users (n, d) and of items (m, d)


@torch.no_grad()
def find_vectors(model: AbstractRecommender, dataset: Dataset) -> Vectors | None:
    """The vectors of all users and all items; None for a model that has none."""
    generator, sizes = torch.Generator().manual_seed(0), (dataset.user_num, dataset.item_num)
    users, items = (torch.randint(1, size, (COMPARED,), generator=generator) for size in sizes)
    pairs = torch.cartesian_prod(users, items)
    scores = pair_scores(model, dataset, *pairs.T).view(COMPARED, COMPARED)
    biases = [rows for rows in side_tables(model, find_tables(model, dataset), dataset)["item"] if rows.shape[1] == 1]
    for bias in (None, *biases):
        for p, q in _candidates(model, dataset):
            if not (p.dim() == q.dim() == 2 and (len(p), len(q)) == sizes and p.shape[1] == q.shape[1]):
                continue
            if bias is not None:
                p, q = torch.cat([p, torch.ones_like(p[:, :1])], dim=1), torch.cat([q, bias], dim=1)
            left = (p[users] @ q[items].T).cpu() - scores
            if bias is not None:
                left -= left.mean(dim=1, keepdim=True)  # what is the same for all items of a user
            if left.abs().max() <= CLOSE * scores.abs().max():
                return p.detach(), q.detach()
    return None


def _candidates(model: AbstractRecommender, dataset: Dataset) -> Iterator[Vectors]:
    """Pairs of matrices of a model that has just scored: those it caches, those it makes, and its tables."""
    cached = getattr(model, "restore_user_e", None), getattr(model, "restore_item_e", None)
    # An ensemble caches as well, but its vectors are of all its models.
    if isinstance(model, GeneralRecommender) and cached[0] is not None and cached[1] is not None:
        yield cached[0], cached[1]
    given = inspect.signature(model.forward).parameters.values()
    made = model.forward() if all(one.default is not inspect.Parameter.empty for one in given) else None
    if isinstance(made, tuple) and [isinstance(part, torch.Tensor) for part in made[:2]] == [True, True]:
        yield made[0], made[1]
    yield from itertools.product(*side_tables(model, find_tables(model, dataset), dataset).values())


def side_tables(
    model: AbstractRecommender, tables: Sequence[Table], dataset: Dataset
) -> dict[Side, list[torch.Tensor]]:
    """The rows of users and of items in each of ``tables``, as views of the weights."""
    sizes = {"user": dataset.user_num, "item": dataset.item_num}
    sides: dict[Side, list[torch.Tensor]] = {"user": [], "item": []}
    for table in tables:
        rows = as_rows(model.get_parameter(table.parameter), table.axis)
        sides[table.side].append(rows[table.offset : table.offset + sizes[table.side]])
    return sides
