r"""Faster versions of RecBole's models, and changes to what a model stores of its training data.

A class with ``@faster(Original)`` replaces RecBole's class in every training: the same numbers, the same state_dict,
less time. A checkpoint of one loads into the other.

Graph models: RecBole builds the normalised adjacency Â = D^-½ A D^-½ entry by entry and multiplies it in COO form,
whose backward pass transposes it at every step. Â is symmetric, so the gradient of Âx is Âg: one CSR product forward
and one backward.

A model may store training interactions next to its weights, for example a graph. A state that serves one request
after another removes them in place (:func:`pair_remover`); models without that are built again.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.general_recommender import bpr, lightgcn, neumf, ngcf
from recbole.model.knowledge_aware_recommender.kgcn import KGCN
from torch.nn import functional

from recbole_unlearn.recbole_compat import anomaly_mode_kept
from recbole_unlearn.registry import Registry
from recbole_unlearn.rows.index import ranges

with anomaly_mode_kept():
    from recbole.model.sequential_recommender import bert4rec, fearec

PairRemover = Callable[[torch.Tensor, torch.Tensor], None]  # takes users and items (m,)

EPSILON = 1e-7  # RecBole adds it to degrees
COLUMNS = 64  # of a product with a graph at once: wider ones take MKL a third longer for each column
FAST: Registry[type] = Registry("faster version of a model", "recbole_unlearn.training")  # by RecBole's class
_STORE_NOTHING = (bpr.BPR, neumf.NeuMF)  # models without a copy of their training interactions


def faster(original: type) -> Callable[[type], type]:
    """Class decorator: use this subclass in place of RecBole's ``original``."""

    def add(cls: type) -> type:
        FAST.add(original, cls)
        return cls

    return add


def fast_class(model_class: type) -> type:
    """The faster version of ``model_class``, or itself if there is none."""
    return FAST.entries.get(model_class, model_class)


class SymmetricMap(torch.autograd.Function):
    """Mx for a constant symmetric matrix M, given as a function; d(Mx)ᵀg/dx = Mᵀg = Mg."""

    @staticmethod
    def forward(ctx: Any, times: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """(n, d) to (n, d)."""
        ctx.times = times
        return times(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        """The same function, of the gradient; it can be derived again."""
        return None, SymmetricMap.apply(ctx.times, gradient)


def csr_tensor(starts: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, size: Any) -> torch.Tensor:
    """A CSR tensor, without torch's warning that they are in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(starts, columns, values, size=size, check_invariants=False)


def normalised_adjacency(interactions: sp.coo_matrix) -> torch.Tensor:
    """Â = D^-½ A D^-½ over users and items as a CSR tensor (users + items, users + items).

    A pair counts once however often it occurs, and degrees get RecBole's ε, in its precision.
    """
    users, items = interactions.shape
    block = sp.csr_matrix((np.ones(interactions.nnz), (interactions.row, interactions.col)), (users, items))
    block.sum_duplicates()
    block.data[:] = 1.0
    adjacency = sp.bmat([[None, block], [block.T, None]], format="csr")
    adjacency.sort_indices()
    scale = np.power(np.diff(adjacency.indptr) + EPSILON, -0.5)
    rows = np.repeat(np.arange(users + items), np.diff(adjacency.indptr))
    values = scale[rows] * scale[adjacency.indices]
    small = np.int32 if adjacency.nnz < 2**31 else np.int64  # MKL's; a product copies others
    starts, columns = (torch.from_numpy(p.astype(small)) for p in (adjacency.indptr, adjacency.indices))
    return csr_tensor(starts, columns, torch.from_numpy(values.astype(np.float32)), adjacency.shape)


def some_rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """``rows`` (m,) of a CSR tensor (n, n), copied, as a tensor (m, n); a product with it has the same bits."""
    starts = matrix.crow_indices()
    count = starts[rows + 1] - starts[rows]
    places = ranges(starts[rows], count)
    ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
    size = (len(rows), matrix.shape[1])
    return csr_tensor(ends.to(matrix.col_indices()), matrix.col_indices()[places], matrix.values()[places], size)


class EdgeRemoval:
    """Removes edges from a normalised adjacency Â; computes only entries of the nodes that they join.

    The result is bit for bit that of a graph that was built without the edges, and so is every product with it. A
    stored zero in place of an edge would not do: MKL sums the entries of a row in groups, by their places in it.
    """

    def __init__(self, matrix: torch.Tensor, users: int) -> None:
        """``matrix`` (n, n) has users first, then items."""
        self._values, self._columns = matrix.values(), matrix.col_indices().cpu()
        self._users, self._size = users, matrix.shape[0]
        self._degree = matrix.crow_indices().cpu().long().diff()
        rows = torch.repeat_interleave(torch.arange(self._size), self._degree)
        self._keys = rows * self._size + self._columns  # sorted, since columns are sorted within a row

    def remove(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Â without the edges between ``users`` and ``items`` (m,); each has to exist, and is named once.

        The other entries in the rows and columns of their nodes are computed again: 1 / √((d_a + ε)(d_b + ε)).
        """
        ends, others = torch.cat([users, items + self._users]), torch.cat([items + self._users, users])
        kept = torch.ones(len(self._keys), dtype=torch.bool)
        kept[torch.searchsorted(self._keys, ends * self._size + others)] = False
        self._keys, self._columns = self._keys[kept], self._columns[kept]
        self._values = self._values[kept.to(self._values.device)]
        self._degree.index_add_(0, ends, torch.full_like(ends, -1))
        start = torch.cat([self._degree.new_zeros(1), self._degree.cumsum(0)])
        nodes = torch.unique(ends)
        count = self._degree[nodes]
        places = ranges(start[nodes], count)
        rows, columns = torch.repeat_interleave(nodes, count), self._columns[places].long()
        # numpy's power, as in normalised_adjacency: torch's differs in the last bit
        left, right = (np.power(self._degree[ids].numpy() + EPSILON, -0.5) for ids in (rows, columns))
        values = (torch.from_numpy(left) * torch.from_numpy(right)).to(self._values)
        for where in (places, torch.searchsorted(self._keys, columns * self._size + rows)):
            self._values[where.to(values.device)] = values
        columns, size = self._columns.to(values.device), (self._size, self._size)
        return csr_tensor(start.to(columns), columns, self._values, size)


def in_full_precision(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a graph model's pass: enable_amp does not reach it, as no sparse product has half precision."""

    @functools.wraps(forward)
    def wrapped(self: Any, *args: Any) -> Any:
        with torch.autocast(self.device.type, enabled=False):
            return forward(self, *args)

    return wrapped


@faster(lightgcn.LightGCN)
class LightGCN(lightgcn.LightGCN):
    """RecBole's LightGCN with the same weights, in less time (see benchmarks/epoch.py)."""

    def get_norm_adj_mat(self) -> torch.Tensor:
        """The normalised adjacency, built at once."""
        return normalised_adjacency(self.interaction_matrix)

    @in_full_precision
    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """User and item embeddings: the mean over the layers x, Âx, Â²x, ..."""
        final = SymmetricMap.apply(self.propagated, self.get_ego_embeddings())
        users, items = torch.split(final, [self.n_users, self.n_items])
        return users, items

    def propagated(self, x: torch.Tensor, *spare: torch.Tensor) -> torch.Tensor:
        """(x + Âx + Â²x + ...) / (L+1), as x + Â(x + Â(x + ...)); in one of two ``spare`` tensors where given."""
        if x.shape[1] > COLUMNS:
            return torch.cat([self.propagated(part.contiguous()) for part in x.split(COLUMNS, dim=1)], dim=1)
        found, spare = x, spare or (torch.empty_like(x), torch.empty_like(x))
        for layer in range(self.n_layers):
            found = torch.addmm(x, self.norm_adj_matrix, found, out=spare[layer % 2])
        return torch.div(found, self.n_layers + 1, out=spare[self.n_layers % 2])


@faster(ngcf.NGCF)
class NGCF(ngcf.NGCF):
    """RecBole's NGCF with the same weights, in less time; with node_dropout each step has a new matrix, as there."""

    def get_norm_adj_mat(self) -> torch.Tensor:
        """The normalised adjacency, built at once; in COO form where edges are to be dropped from it."""
        matrix = normalised_adjacency(self.interaction_matrix)
        return matrix.to_sparse_coo().coalesce() if self.node_dropout else matrix

    @in_full_precision
    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """User and item embeddings: all layers x_k side by side, x_k+1 from (x_k + Âx_k)W₁ + (Âx_k ⊙ x_k)W₂."""
        if self.node_dropout:
            return super().forward()
        layer = self.get_ego_embeddings()
        layers = [layer]
        for step in self.GNNlayers:
            near = SymmetricMap.apply(self.norm_adj_matrix.matmul, layer)
            layer = step.linear(layer + near) + step.interActTransform(near * layer)
            layer = functional.leaky_relu(layer, negative_slope=0.2)
            layer = functional.dropout(layer, self.message_dropout, self.training)  # RecBole 1.2.0 always drops
            layer = functional.normalize(layer, p=2, dim=1)
            layers.append(layer)
        users, items = torch.split(torch.cat(layers, dim=1), [self.n_users, self.n_items])
        return users, items


@faster(bert4rec.BERT4Rec)
class BERT4Rec(bert4rec.BERT4Rec):
    """RecBole's BERT4Rec; the loss of a batch in which no item happens to be masked is 0, not RecBole's 0 / 0."""

    def calculate_loss(self, interaction: Interaction) -> torch.Tensor:
        """The mean over masked items; the first position of a history does not count, as in RecBole."""
        if not (interaction[self.MASK_INDEX] > 0).any():
            return 0.0 * self.output_bias.sum()
        return super().calculate_loss(interaction)


@faster(fearec.FEARec)
class FEARec(fearec.FEARec):
    """RecBole's FEARec; its index of windows by target takes one sort, where RecBole compares all pairs."""

    def get_same_item_index(self, dataset: Dataset) -> dict[int, np.ndarray]:
        """For each item, the numbers of the windows whose target it is, ascending."""
        targets = dataset.inter_feat[self.ITEM_ID].numpy()
        order = np.argsort(targets, kind="stable")
        items, first = np.unique(targets[order], return_index=True)
        return dict(zip(items.tolist(), np.split(order, first[1:]), strict=True))


def pair_remover(model: AbstractRecommender) -> PairRemover | None:
    """A function that removes pairs from all that ``model`` stores of its training data; None: build it again.

    A user's subclass is built again, as it may store more than the class it extends.
    """
    if type(model) in _STORE_NOTHING:
        return lambda users, items: None
    drops_edges = isinstance(model, NGCF) and model.node_dropout  # a new graph at every step
    if type(model) not in (LightGCN, NGCF) or drops_edges:
        return None
    model.interaction_matrix = None  # read only to build the graph
    removal = EdgeRemoval(model.norm_adj_matrix, model.n_users)

    def remove(users: torch.Tensor, items: torch.Tensor) -> None:
        model.norm_adj_matrix = removal.remove(users, items)

    return remove


def forget_neighbours(model: AbstractRecommender, dataset: Dataset) -> None:
    """Remove neighbours from a KGCN that no fact of ``dataset`` links; all other models stay as they are.

    KGCN reads an item with a few neighbours in the knowledge graph, drawn once per entity and saved in its
    checkpoint. An unlearned model keeps those of the original, which its weights were fitted to. When a request
    deletes the last interaction of an item, the facts about it leave the graph and these tables: the first remaining
    neighbour of the entity takes the place. An entity with none left is its own neighbour, as in RecBole.
    """
    if not isinstance(model, KGCN):
        return
    entity, relation = model.adj_entity, model.adj_relation  # (entities, drawn)
    own = torch.arange(len(entity), device=entity.device)
    ends = dataset.kg_feat[dataset.head_entity_field], dataset.kg_feat[dataset.tail_entity_field]
    head, tail = (end.to(entity.device) for end in ends)
    linked = torch.unique(torch.cat([head * len(entity) + tail, tail * len(entity) + head]))
    left = torch.isin(own[:, None] * len(entity) + entity, linked)
    first, alone = left.int().argmax(dim=1), ~left.any(dim=1)
    model.adj_entity = torch.where(left, entity, torch.where(alone, own, entity[own, first])[:, None])
    model.adj_relation = torch.where(left, relation, torch.where(alone, 0, relation[own, first])[:, None])
