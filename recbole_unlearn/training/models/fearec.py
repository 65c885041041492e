"""FEARec whose index of windows by target is made at once: RecBole compares every window with all others."""

from __future__ import annotations

import numpy as np
from recbole.data.dataset import Dataset

from recbole_unlearn.compat import anomaly_mode_kept
from recbole_unlearn.training.models import faster

with anomaly_mode_kept():
    from recbole.model.sequential_recommender import fearec


@faster(fearec.FEARec, filed_as="recbole.model.sequential_recommender.fearec.FEARec")
class FEARec(fearec.FEARec):
    """RecBole's FEARec with the same index, in less time."""

    def get_same_item_index(self, dataset: Dataset) -> dict[int, np.ndarray]:
        """By item, the numbers of the windows that it is the target of, ascending."""
        targets = dataset.inter_feat[self.ITEM_ID].numpy()
        order = np.argsort(targets, kind="stable")
        items, first = np.unique(targets[order], return_index=True)
        return dict(zip(items.tolist(), np.split(order, first[1:]), strict=True))
