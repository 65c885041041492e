#!/usr/bin/env bash
# A week of deletion requests on a live model: daily files, a typo, second thoughts, the receipt, and Monday's new data.
# usage: examples/week.sh [DIRECTORY]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-$(mktemp -d)}
export OMP_NUM_THREADS=1 RECBOLE_UNLEARN_KEY=${RECBOLE_UNLEARN_KEY:-$(python -c 'import secrets; print(secrets.token_hex(32))')}
requests() { python -m recbole_unlearn requests "$1" "$work/care" "${@:2}"; }

echo "== Monday: the model that is served becomes a state, and is exported"
python "$here/train_plain.py" "$work/saved"
requests init --checkpoint="$(ls "$work"/saved/BPR-*.pth)"
requests export "$work/monday"

echo "== Tuesday: a file with a column of tickets, and a user who is not in the data (exit code 3)"
printf 'user_id,item_id,ticket\n196,242,T-1\n22,,T-2\n99999,,T-2\n7,32,T-3\n' > "$work/tuesday.csv"
requests submit "$work/tuesday.csv" --per=ticket --deadline=30d || [ $? -eq 3 ]
requests run
requests export "$work/tuesday" --since="$work/monday"

echo "== Wednesday: T-3 has second thoughts; the others have had their day (here: their second)"
requests rollback T-3
requests publish --older_than=1s
requests receipt T-2 --out="$work/officer"

echo "== Thursday: the last request of the week"
printf 'user_id\n305\n' > "$work/thursday.csv"
requests submit "$work/thursday.csv" --id=T-4 --deadline=30d
requests run

echo "== Monday: new data, in which user 22 is still there, and is left out"
printf 'user_id,item_id,rating,timestamp\n22,17,5,1795000000\n2000,1,4,1795000000\n2000,50,5,1795000000\n' > "$work/week.csv"
requests check "$work/week.csv" || echo "The source still has someone who was deleted."
requests learn "$work/week.csv"
requests export "$work/next-monday"
requests verify
requests status
