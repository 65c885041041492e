"""A smaller dataset for a small machine: some users of a RecBole dataset, and of their interactions the 5-core.

    python benchmarks/sample_users.py --dataset=yelp2018 --data_path=DIR --users=10500 --name=yelp10k

    python benchmarks/sample_users.py --dataset=ml-1m --data_path=DIR --users=1500 --name=ml1m1500 --rating=4 --times

Writes DIR/NAME/NAME.inter with users and items, and with times if asked for. The users are drawn with a seed: it is
always the same sample.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

CORE = 5


def core(frame: pd.DataFrame, least: int) -> pd.DataFrame:
    """The interactions of users and items that have at least ``least`` of them, taken away until it holds for all."""
    while True:
        size = len(frame)
        for column in (1, 0):
            frame = frame[frame.groupby(frame.columns[column])[frame.columns[0]].transform("size") >= least]
        if len(frame) == size:
            return frame


def main() -> None:
    """Draw the users and write their file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="yelp2018")
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--users", type=int, default=10_500)
    parser.add_argument("--name", default="yelp10k")
    parser.add_argument("--rating", type=float, help="leave out interactions with a lower rating")
    parser.add_argument("--times", action="store_true", help="keep the times, which sequential models need")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    source = Path(args.data_path) / args.dataset / f"{args.dataset}.inter"
    columns = ["user_id:token", "item_id:token"] + ["timestamp:float"] * args.times
    frame = pd.read_csv(source, sep="\t", dtype=str)
    if args.rating is not None:
        frame = frame[frame["rating:float"].astype(float) >= args.rating]
    frame = frame[columns]
    users = frame["user_id:token"].unique()
    chosen = np.random.default_rng(args.seed).choice(users, min(args.users, len(users)), replace=False)
    frame = core(frame[frame["user_id:token"].isin(set(chosen))], CORE)
    folder = Path(args.data_path) / args.name
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / f"{args.name}.inter", sep="\t", index=False)
    users, items = (frame[column].nunique() for column in frame.columns[:2])
    print(f"{len(frame)} interactions of {users} users with {items} items: {folder}")


if __name__ == "__main__":
    main()
