"""BERT4Rec that can train on a batch in which no item happens to be masked: RecBole's loss is 0 / 0 there."""

from __future__ import annotations

import torch
from recbole.data.interaction import Interaction

from recbole_unlearn.compat import anomaly_mode_kept
from recbole_unlearn.training.models import faster

with anomaly_mode_kept():
    from recbole.model.sequential_recommender import bert4rec


@faster(bert4rec.BERT4Rec, filed_as="recbole.model.sequential_recommender.bert4rec.BERT4Rec")
class BERT4Rec(bert4rec.BERT4Rec):
    """RecBole's BERT4Rec with the same loss, and 0 where there is none."""

    def calculate_loss(self, interaction: Interaction) -> torch.Tensor:
        """The mean over masked items; the first place of a history does not count, as in RecBole."""
        if not (interaction[self.MASK_INDEX] > 0).any():
            return 0.0 * self.output_bias.sum()
        return super().calculate_loss(interaction)
