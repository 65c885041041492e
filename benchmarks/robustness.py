"""Fuzzed files and killed runs, many of them, through the whole command; prints what each ended in.

usage: python benchmarks/robustness.py [--cases=5000] [--kills=200] [--seed=0]
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main() -> None:
    """Run both campaigns on a small dataset that is made for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.argv = sys.argv[:1]  # RecBole reads the command line too
    from tests.conftest import write_tiny
    from tests.fuzz import campaign, crash_cases

    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        write_tiny(root / "data")
        seeds = range(given.seed, given.seed + given.cases)
        found = campaign.run(seeds, root / "data", root / "fuzz")
        for seed, what in sorted(found.items()):
            if what.split(":")[0] not in campaign.GOOD:
                print(f"case {seed}: {what}")
        print(f"{len(found)} fuzzed files: {campaign.counts(found)}")
        killed = crash_cases.campaign(given.kills, root / "data", root / "kills", given.seed)
        print(f"{given.kills} kills: {dict(killed)}")


if __name__ == "__main__":
    main()
