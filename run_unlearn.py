"""Make a trained RecBole model forget: `python run_unlearn.py --model=LightGCN --dataset=ml-100k`."""

import sys

from recbole_unlearn.cli import main

if __name__ == "__main__":
    sys.exit(main())
