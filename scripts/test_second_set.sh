#!/usr/bin/env bash
# Run the tests on the second set of versions: RecBole 1.2.1 with Ray 2.6.3 and numpy 1, on Python 3.11.
# usage: scripts/test_second_set.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3.11 -m venv "$venv"
. "$venv/bin/activate"
export OMP_NUM_THREADS=1
tools=$(python -c 'import configparser as c; f = c.ConfigParser(); f.read("setup.cfg"); print(f["options.extras_require"]["test"])')
# shellcheck disable=SC2086  # one word for each tool
pip install -r requirements-recbole-1.2.1.txt $tools
pip install --no-deps -e .
pytest "$@"
