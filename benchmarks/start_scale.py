"""The spectral start alone on synthetic data: seconds and peak memory by the number of interactions.

    python benchmarks/start_scale.py --interactions=20000000,100000000

Users and items are drawn from power laws; a pair that is drawn twice counts once. Each size runs in a process of its
own, with one thread. The peak includes the interactions themselves, as RecBole holds them (16 bytes each).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch

from recbole_unlearn.training.spectral import by_interactions


class Synthetic:
    """As much of a RecBole dataset as the start reads."""

    uid_field, iid_field = "user_id", "item_id"

    def __init__(self, users: int, items: int, number: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.user_num, self.item_num = users, items
        self.inter_feat = {
            field: (size * torch.rand(number, generator=generator) ** 2).long().clamp_(1, size - 1)
            for field, size in ((self.uid_field, users), (self.iid_field, items))
        }


def main() -> None:
    """One line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=10**6)
    parser.add_argument("--items", type=int, default=10**5)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--interactions", default="20000000,100000000")
    args = parser.parse_args()
    sizes = args.interactions.split(",")
    if len(sizes) > 1:
        for size in sizes:
            subprocess.run([sys.executable, __file__, *sys.argv[1:], f"--interactions={size}"], check=True)
        return
    torch.set_num_threads(1)
    data = Synthetic(args.users, args.items, int(sizes[0]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.perf_counter()
    by_interactions(data, args.width, torch.Generator().manual_seed(0))
    seconds, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{int(sizes[0]):,} interactions: {seconds:.0f} s, peak {peak:.1f} GiB ({before:.1f} before)", flush=True)


if __name__ == "__main__":
    main()
