r"""What a run looks like without retraining: deleted pairs beside where a model that never saw them should put them.

A closed-form ranker of D\S answers the same comparisons as all phases (`rows/closed_form.py`). Its demotion rate, the
*expected level*, stands in for the retrained model's. How far it may be off is the largest of

* a share of the level, :data:`UNSURE`. A retrained model's was away by up to .07 of it on ml-100k (docs/measuring.md)
  and by about twice as much for noise on ml-1m (`rows/closed_form.py`);
* the difference of the ranker and the original on held-out pairs of the same users, which neither has seen: a model
  that ranks those otherwise is of another kind, and the ranker says little about it;
* twice the standard errors of what is compared, and what the verdict takes for no difference.

So the outcome is provisional.
"""

from __future__ import annotations

import torch

from recbole_unlearn.data import UnlearnData
from recbole_unlearn.measures.base import rounded
from recbole_unlearn.measures.demotion import clustered
from recbole_unlearn.measures.scores import Observation, Pairs, Questions
from recbole_unlearn.measures.verdict import BEYOND, LEAST, SHARE
from recbole_unlearn.results.schema import Provisional
from recbole_unlearn.rows import PAIRS, ClosedFormRanker, RetainedIndex, TrainIndex

UNSURE = 0.15  # of the expected level, that a retrained model's demotion rate may be away from it
EXACT = Provisional(
    "near",
    "the method's certificate: the model was computed from the retained interactions alone, which is exact",
)
NOTHING_LEFT = Provisional(
    "cannot_tell",
    "too few users of the request have an interaction left, so nothing tells where their deleted items belong",
)
_RANKER = (
    "a closed-form ranker of the retained interactions, which estimates where a model that never saw the deleted "
    "pairs would put them"
)


def provisional(
    questions: Questions,
    data: UnlearnData,
    original: Observation,
    unlearned: Observation,
    least: int = 1,
    seed: int = 0,
) -> Provisional | None:
    """What the unlearned model looks like; None where no deleted pair can be compared.

    Users without a retained interaction are left out: nothing says what they would like. Fewer than ``least`` others
    are too few to speak of.
    """
    if len(questions.deleted) == 0:
        return None
    retained = _retained(data)
    picked = _known(questions.deleted, retained, seed)
    users = questions.deleted.users[picked]
    number = len(torch.unique(users))
    if number < max(1, least):
        return NOTHING_LEFT
    ranker = ClosedFormRanker(retained)
    demoted = _demoted(ranker, questions.deleted, picked)
    gaps = [
        clustered(seen.deleted.demoted[picked].double() - demoted, users) for seen in (original, unlearned)
    ]
    held_out = _known(questions.held_out, retained, seed)
    other = original.held_out.demoted[held_out].double() - _demoted(ranker, questions.held_out, held_out)
    level = float(demoted.mean())
    unsure = max(
        LEAST,
        UNSURE * level,
        abs(float(other.mean())) if len(other) else 0.0,
        *(2 * error for _, error in gaps),
    )
    return Provisional(looks(gaps[0][0], gaps[1][0], unsure), _RANKER, rounded(level), number)


def looks(start: float, end: float, unsure: float) -> str:
    """A level from the demotion rates of the original and the unlearned model, each minus the expected level.

    ``unsure`` is how far the expected level may be off. Below it (negative) are models that still know the deleted
    pairs. The rules are those of the verdict, with two differences that keep a model that did nothing from passing:

    * an original that is not below the expected level by twice ``unsure`` cannot be told from a model that never saw
      the pairs, so the level is *cannot_tell*;
    * *over* is a model that went beyond the expected level and left the original by more than ``unsure``.
    """
    if end > max(BEYOND * abs(start), unsure) and end - start > unsure:
        return "over"
    if min(start, end) >= -2 * unsure:
        return "cannot_tell"
    return "under" if end < -max(SHARE * abs(start), unsure) else "near"


def _retained(data: UnlearnData) -> RetainedIndex:
    forget = data.forget
    pairs = forget.inter_feat[forget.uid_field], forget.inter_feat[forget.iid_field]
    return RetainedIndex(TrainIndex(data.full.train), *pairs, data.deleted)


def _known(pairs: Pairs, retained: RetainedIndex, seed: int) -> torch.Tensor:
    """Positions of pairs whose users have a retained interaction; a sample where there are many."""
    index = retained.index
    left = torch.bincount(index.ids["user"][~retained.deleted], minlength=index.sizes["user"])
    known = (left[pairs.users] > 0).nonzero().flatten()
    chosen = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))[:PAIRS]
    return known[chosen.sort().values]


def _demoted(ranker: ClosedFormRanker, pairs: Pairs, picked: torch.Tensor) -> torch.Tensor:
    """The share of the compared items that the closed-form ranker puts above each pair (m,)."""
    items = torch.cat([pairs.items[picked, None], pairs.others[picked]], dim=1)
    scores = ranker.scores(pairs.users[picked], items)
    return (scores[:, :1] < scores[:, 1:]).double().mean(dim=1)
