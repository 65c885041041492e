#!/usr/bin/env bash
# A model that plain RecBole trained, and deletion requests in a CSV file.
# usage: examples/checkpoint_and_csv.sh [DIRECTORY]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-$(mktemp -d)}
export OMP_NUM_THREADS=1

# 1. What you have already: a checkpoint that RecBole's trainer wrote.
python "$here/train_plain.py" "$work/saved"
checkpoint=$(ls "$work"/saved/BPR-*.pth)

# 2. Requests come in, in the dataset's own tokens.
printf 'user_id\n196\n186\n' > "$work/monday.csv"
python -m recbole_unlearn --checkpoint="$checkpoint" --forget="$work/monday.csv" --unlearn=obliviate --output_dir="$work/monday"

# 3. The next request starts where the last one ended: the unlearned model, with the retained data beside it.
printf 'user_id\n298\n' > "$work/tuesday.csv"
python -m recbole_unlearn --checkpoint="$work/monday/BPR-unlearned.pth" --forget="$work/tuesday.csv" \
    --unlearn=obliviate --output_dir="$work/tuesday"
ls "$work/tuesday"
