"""From a loss to the adapters' gradients: by autograd for any model, written out for BPR and LightGCN.

LAC needs two things: the model's own training loss on a batch (:meth:`RowGradients.own`), and scores of pairs whose
loss it computes itself (:meth:`RowGradients.scores`, then :meth:`RowGradients.back`). Both add to the gradients,
which :meth:`RowGradients.take` returns. With ΔW = A Bᵀ and G the gradient of the rows (n, d), that of A is G B and
that of B is GᵀA; the latter is needed only where B is trained.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from recbole.model.general_recommender.bpr import BPR
from recbole.model.general_recommender.lightgcn import LightGCN
from torch.nn.functional import softplus

from recbole_unlearn.methods.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import Side, Triples, Witness, as_rows, predicted, training_loss
from recbole_unlearn.training import fast_class, some_rows


class RowGradients:
    """Gradients of the trained adapters of a model, by autograd."""

    trains: ClassVar[bool] = True  # the mode of the model in its own loss

    def __init__(self, adapters: AdapterSet, witness: Witness, whole: bool = False) -> None:
        """``whole``: return G itself instead of G B."""
        self.adapters, self.witness, self.whole = adapters, witness, whole
        self.chosen, self.model = adapters.trained, adapters.model
        named = dict(self.model.named_parameters())
        # Parameters that the model itself holds fixed (RecVAE's earlier encoder) have no gradient.
        names = dict.fromkeys(adapter.name for adapter in self.chosen)
        self._names = [name for name in names if named[name].requires_grad]
        self._parameters = [named[name] for name in self._names]
        self._sums: dict[str, torch.Tensor] = {}
        self._scores: torch.Tensor | None = None
        self._set_up()

    def _set_up(self) -> None:
        """For subclasses."""

    def own(self, triples: Triples, weight: float = 1.0) -> float:
        """``weight`` times the model's own training loss on a batch; its gradient is added."""
        self.model.train(self.trains)
        batch = self.witness.batch(triples.part(self.witness.units(triples.users)))
        return self.add(lambda: training_loss(self.model, batch), weight)

    def add(self, loss: Callable[[], torch.Tensor], weight: float) -> float:
        """``weight`` times ``loss()``; its gradient is added."""
        value = weight * loss()
        self._add(value.sum(), None)
        return value.item()

    def scores(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """The model's scores of pairs (m,), detached."""
        self.model.eval()
        clear_caches(self.model)
        self._scores = predicted(self.model, self.witness.index.train, users, items)
        return self._scores.detach()

    def back(self, gradient: torch.Tensor) -> None:
        """Add the gradient of a loss whose gradient with respect to the last scores is ``gradient`` (m,)."""
        assert self._scores is not None, "scores() comes first"
        self._add(self._scores, gradient)
        self._scores = None

    def compared(self, deleted: Triples) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores (m,) of deleted pairs and of their negatives."""
        users, items = torch.cat([deleted.users] * 2), torch.cat([deleted.items, deleted.negatives])
        own, other = self.scores(users, items).chunk(2)
        return own, other

    def demotion(self, deleted: Triples) -> float:
        """The share of deleted pairs that score below their negative."""
        if len(deleted.users) == 0:
            return 1.0
        own, other = self.compared(deleted)
        return float((own < other).float().mean())

    def take(self) -> list[torch.Tensor]:
        """G B (or G) for every adapter, summed since the last call."""
        taken = []
        for adapter in self.chosen:
            rows = torch.zeros_like(adapter.base)
            if adapter.name in self._sums:
                rows = as_rows(self._sums[adapter.name], adapter.axis)[adapter.rows]
            taken.append(self._projected(rows, adapter))
        self._sums = {}
        return taken

    def _projected(self, rows: torch.Tensor, adapter: Adapter) -> torch.Tensor:
        return rows if self.whole else rows @ adapter.b

    def changed(self) -> None:
        """To be called when the adapters' A have changed."""
        for adapter in self.chosen:
            self.adapters.rows(adapter)[adapter.rows] = adapter.start + adapter.low

    def _add(self, output: torch.Tensor, gradient: torch.Tensor | None) -> None:
        found = torch.autograd.grad(output, self._parameters, gradient, allow_unused=True)
        for name, value in zip(self._names, found, strict=True):
            if value is not None:
                self._sums[name] = self._sums[name] + value if name in self._sums else value


def bpr_slopes(p_u: torch.Tensor, x: torch.Tensor, weight: float) -> tuple[float, torch.Tensor, torch.Tensor]:
    """``weight`` times BPR's mean loss −log σ(p_u·x), x = q_i − q_j, over a batch, and its gradients (m, d).

    With c = σ(p_u·x) − 1: ∂/∂p_u = c x, ∂/∂q_i = c p_u, ∂/∂q_j = −c p_u, of which the first two are returned.
    """
    margin = (p_u * x).sum(dim=1)
    c = ((torch.sigmoid(margin) - 1.0) * (weight / max(1, len(x))))[:, None]
    return weight * float(softplus(-margin).mean()), c * x, c * p_u


class BPRGradients(RowGradients):
    """The same for BPR: only rows of the batch are touched, no (users, d) tensor is made."""

    def _set_up(self) -> None:
        self._grads = {adapter.side: torch.zeros_like(adapter.base) for adapter in self.chosen}

    def _gather(self, side: Side, ids: torch.Tensor) -> torch.Tensor:
        """The rows (m, d) of users or items that scores are made of."""
        table = self.model.get_parameter(f"{side}_embedding.weight").detach()
        return table.index_select(0, ids.to(table.device))

    def _put(self, side: Side, ids: torch.Tensor, values: torch.Tensor) -> None:
        if side in self._grads:
            place = self.witness.region[side].place(ids).to(values.device)
            inside = place >= 0
            self._grads[side].index_add_(0, place[inside], values[inside])

    def own(self, triples: Triples, weight: float = 1.0) -> float:
        """As :meth:`RowGradients.own`."""
        x = self._gather("item", triples.items) - self._gather("item", triples.negatives)
        loss, of_user, of_item = bpr_slopes(self._gather("user", triples.users), x, weight)
        self._put("user", triples.users, of_user)
        self._put("item", triples.items, of_item)
        self._put("item", triples.negatives, -of_item)
        return loss

    def scores(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """As :meth:`RowGradients.scores`: p_u·q_i."""
        self._pairs = users, items
        return (self._gather("user", users) * self._gather("item", items)).sum(dim=1)

    def back(self, gradient: torch.Tensor) -> None:
        """As :meth:`RowGradients.back`."""
        users, items = self._pairs
        self._put("user", users, gradient[:, None] * self._gather("item", items))
        self._put("item", items, gradient[:, None] * self._gather("user", users))

    def take(self) -> list[torch.Tensor]:
        """As :meth:`RowGradients.take`."""
        taken = [self._projected(self._grads[adapter.side], adapter) for adapter in self.chosen]
        self._set_up()
        return taken


class LightGCNGradients(BPRGradients):
    """For LightGCN: BPR on the final embeddings P W, with P = (I + Â + Â² + ...)/(L+1) linear and symmetric.

    P(W + A Bᵀ) = P(W) + P(A) Bᵀ: the frozen part is propagated once, and r columns a step instead of d. Backwards,
    the gradient G of the final embeddings gives A the rows of P(G B). Adapters share B, or work with all d columns.
    """

    def _set_up(self) -> None:
        chosen = self.chosen
        self.nodes = [a.rows + (0 if a.side == "user" else self.model.n_users) for a in chosen]
        first = chosen[0].b
        same = all(a.b.shape == first.shape and torch.equal(a.b, first) for a in chosen)
        self._shared = same and not self.whole  # with ``whole`` each adapter trains its own B
        eye = torch.eye(len(first), dtype=first.dtype, device=first.device)
        self._full = self._shared and torch.equal(first, eye)
        ego = self.model.get_ego_embeddings().detach()
        for adapter, nodes in zip(chosen, self.nodes, strict=True):
            ego[nodes] = adapter.start
        self.all_nodes = torch.cat(self.nodes)
        graph = self.model.norm_adj_matrix
        few = graph.layout == torch.sparse_csr and 2 * len(self.all_nodes) < len(ego) and self.model.n_layers > 0
        self._last = some_rows(graph, self.all_nodes) if few else None  # where few, the last layer is theirs alone
        self.base = ego  # without A Bᵀ of the chosen adapters
        self.fixed = self._propagate(ego)
        self.changed()

    def _propagate(
        self, x: torch.Tensor, nodes: torch.Tensor | slice = slice(None), last: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The rows of P(x) of some ``nodes``; ``last`` are their rows of Â, for the last layer."""
        total = x[nodes].clone()
        for _ in range(self.model.n_layers - (last is not None)):
            x = self.model.norm_adj_matrix @ x
            total += x[nodes]
        if last is not None:
            total += last @ x
        return total.div_(self.model.n_layers + 1)

    def _spread(self, blocks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Blocks of rows at their nodes, zero elsewhere."""
        x = torch.zeros(len(self.base), blocks[0].shape[1], dtype=self.base.dtype, device=self.base.device)
        for block, nodes in zip(blocks, self.nodes, strict=True):
            x[nodes] = block
        return x

    def changed(self) -> None:
        """Final embeddings with the adapters as they are now; the model itself is written at the end."""
        if not any(bool(adapter.a.any()) for adapter in self.chosen):
            self.z = self.fixed.clone()
        elif self._shared:
            moved = self._propagate(self._spread([adapter.a for adapter in self.chosen]))
            self.z = self.fixed + (moved if self._full else moved @ self.chosen[0].b.T)
        else:
            self.z = self.fixed + self._propagate(self._spread([adapter.low for adapter in self.chosen]))
        self._grad = torch.zeros_like(self.z)
        self._penalty = torch.zeros(len(self.z), dtype=self.z.dtype, device=self.z.device)

    def _node(self, side: Side, ids: torch.Tensor) -> torch.Tensor:
        return ids.to(self.z.device) + (0 if side == "user" else self.model.n_users)

    def _gather(self, side: Side, ids: torch.Tensor) -> torch.Tensor:
        return self.z.index_select(0, self._node(side, ids))

    def _put(self, side: Side, ids: torch.Tensor, values: torch.Tensor) -> None:
        self._grad.index_add_(0, self._node(side, ids), values)

    def own(self, triples: Triples, weight: float = 1.0) -> float:
        """BPR's loss and RecBole's penalty, λ/m (‖W_u‖ + ‖W_i‖ + ‖W_j‖); with `require_pow` halved squares."""
        loss, penalty, model = super().own(triples, weight), 0.0, self.model
        if not model.reg_weight:
            return loss
        ego = self.base + self._spread([adapter.low for adapter in self.chosen])
        squares, scale = ego.square().sum(dim=1), model.reg_weight * (weight / len(triples.users))
        for ids in (triples.users, triples.items + model.n_users, triples.negatives + model.n_users):
            ids = ids.to(ego.device)
            total = squares[ids].sum()
            count = torch.bincount(ids, minlength=len(ego)).to(ego.dtype)
            value = total / 2 if model.require_pow else total.sqrt()
            if not model.require_pow:
                count /= value.clamp(min=1e-12)
            self._penalty += scale * count
            penalty += float(scale * value)
        return loss + penalty

    def take(self) -> list[torch.Tensor]:
        """As :meth:`RowGradients.take`."""
        narrow = self._shared and not self._full
        grad = self._grad @ self.chosen[0].b if narrow else self._grad
        flows = self._propagate(grad, self.all_nodes, self._last).split([len(nodes) for nodes in self.nodes])
        taken = []
        for adapter, nodes, flow in zip(self.chosen, self.nodes, flows, strict=True):
            penalty = self._projected(self._penalty[nodes][:, None] * (adapter.start + adapter.low), adapter)
            taken.append((flow if narrow else self._projected(flow, adapter)) + penalty)
        self._grad = torch.zeros_like(self._grad)
        self._penalty = torch.zeros_like(self._penalty)
        return taken


def written_out(model_class: type) -> type[RowGradients]:
    """The class of gradients for a model: written out where scores and loss are BPR's or LightGCN's, or autograd."""
    for base, found in _WRITTEN_OUT.items():
        known = (base, fast_class(base))
        if issubclass(model_class, base) and all(
            any(getattr(model_class, name) is getattr(cls, name) for cls in known) for name in _DECIDING
        ):
            return found
    return RowGradients


_DECIDING = ("forward", "calculate_loss", "predict")
_WRITTEN_OUT: dict[type, type[RowGradients]] = {BPR: BPRGradients, LightGCN: LightGCNGradients}


def row_gradients(adapters: AdapterSet, witness: Witness, whole: bool = False) -> RowGradients:
    """The fastest gradients for the model; a witness of windows brings its own class."""
    kind = getattr(witness, "gradients", None) or written_out(type(adapters.model))
    return kind(adapters, witness, whole)
