r"""RRL: reverse ranking of the deleted pairs, restrained by the Fisher information of the retain set.

Built from the paper (*RRL: Recommendation Reverse Learning*, AAAI 2024), which has no code; details may differ.

From the paper: for a deleted pair (u, i) and an item j that the user never touched, the ranking is reversed, and
Fisher information says which weights matter to retained interactions,

    L = -mean over S of log σ(s(u, j) - s(u, i))  +  (λ/2) Σ_k F_k (θ_k - θ₀_k)²

with F the diagonal Fisher information of the retain set.

Filled in: F is summed over D\S and the first term over S, and both are divided by |S|: λ = 1 is then the Laplace
approximation of the retained interactions' likelihood, whatever their number. Gradients of single interactions are
not formed. With n interactions and mean gradients ḡ of batches of B uniform ones, F ≈ n B · mean ḡ² (exact in
expectation where the mean gradient is zero, and exactly Σ g² for B = 1). Adam, a learning rate that falls linearly
to zero, uniform negatives, and all sizes.

Avoided: a public port descends -log σ(s(u, i) - s(u, j)), which is training on S once more
(`test_rrl_lowers_the_scores_of_deleted_pairs` pins the sign); and Fisher information over D, which protects S.
"""

import dataclasses

import torch

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Outcome, RequestLosses, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import Moments, fisher, predicted, reverse_ranking_loss
from recbole_unlearn.settings import setting

BATCH = 8192  # deleted pairs in a step
FISHER_BATCHES, FISHER_SIZE = 64, 256  # batches of F, and retained interactions in each: B above


@dataclasses.dataclass(frozen=True)
class RRLSettings:
    """Settings of RRL."""

    rrl_steps: int = setting("Steps.", low=1)
    rrl_learning_rate: float = setting("Adam's learning rate at the first step; it falls to zero.", low=0.0)
    rrl_fisher: float = setting("Weight λ of the Fisher term; 1 is the Laplace approximation.", low=0.0)


@method("rrl", "Reverse the ranking of deleted pairs, with a Fisher penalty.", RRLSettings)
class RRL(UnlearnTrainer):
    """Minimises reverse ranking on S plus the Fisher term from θ₀. May change every weight that its scores read."""

    needs_index = True
    needs_gradients = True
    forgets_more = ("raise rrl_steps", "raise rrl_learning_rate", "lower rrl_fisher")
    forgets_less = ("raise rrl_fisher", "lower rrl_steps", "lower rrl_learning_rate")

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """The Fisher information at θ₀, then the steps."""
        options: RRLSettings = task.settings
        request = RequestLosses(task, self.model)
        pairs = len(request.retained.gone)
        if pairs == 0:
            return Outcome()  # a retained interaction has every deleted pair too: nothing to push down
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        held = self._fisher(request) if options.rrl_fisher else {}
        anchor = {name: named[name].detach().clone() for name in held}
        optimizer = torch.optim.Adam(named.values(), lr=options.rrl_learning_rate)
        witness, points = request.witness(), []
        with progress_bar(f"RRL {self.label}", options.rrl_steps, bool(task.config["show_progress"])) as bar:
            for step in range(options.rrl_steps):
                deleted = witness.deleted(BATCH)
                users = torch.cat([deleted.users, deleted.users])
                items = torch.cat([deleted.items, deleted.negatives])
                clear_caches(self.model)
                own, other = predicted(self.model, request.index.train, users, items).chunk(2)
                reverse = reverse_ranking_loss(own, other)
                loss = reverse + options.rrl_fisher / pairs * fisher_term(named, anchor, held)
                if not torch.isfinite(loss):
                    raise UnlearnError(
                        f"rrl failed: its loss is {loss.item()}. Lower rrl_learning_rate or rrl_fisher."
                    )
                optimizer.zero_grad()
                loss.backward()
                for group in optimizer.param_groups:
                    group["lr"] = options.rrl_learning_rate * (1.0 - step / options.rrl_steps)
                optimizer.step()
                points.append((step + 1, round(loss.item(), 6)))
                bar.update()
        optimizer.zero_grad()
        return Outcome({"objective": {"first": points[0][1], "last": points[-1][1]}}, {"loss": points})

    def _fisher(self, request: RequestLosses) -> Moments:
        r"""F summed over D\S, by parameter name."""
        witness, generator = request.witness(), request.generator
        units = witness.everything()
        size = min(FISHER_SIZE, len(units))
        drawn = (torch.randint(0, len(units), (size,), generator=generator) for _ in range(FISHER_BATCHES))
        found = fisher(self.model, (witness.batch(witness.triples(units[numbers])) for numbers in drawn))
        return {name: len(units) * size * value for name, value in found.items()}


def fisher_term(named: dict[str, torch.nn.Parameter], anchor: dict[str, torch.Tensor], held: Moments) -> torch.Tensor:
    """½ Σ_k F_k (θ_k - θ₀_k)², a scalar; parameters without F are free."""
    parts = [0.5 * (held[name] * (named[name] - anchor[name]).square()).sum() for name in held]
    return sum(parts, torch.zeros((), device=next(iter(named.values())).device))
