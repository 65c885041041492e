#!/usr/bin/env bash
# Run the tests on the second set of versions: RecBole 1.2.0, numpy 2 and today's Ray.
# usage: scripts/test_second_set.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
. "$venv/bin/activate"
export OMP_NUM_THREADS=1
pip install -c constraints-modern.txt -e ".[test,tune]"
pip check
pytest "$@"
