"""`python -m recbole_unlearn`: the command line, from any directory."""

import sys

from recbole_unlearn.cli import main

if __name__ == "__main__":
    sys.exit(main())
