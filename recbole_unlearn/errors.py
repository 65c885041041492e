"""The one exception a user is meant to read.

Its message is a single line that says what was wrong, where, and what to do next. The command line
prints it without a traceback and exits with :data:`EXIT_CODE`; Python callers catch it.
"""

EXIT_CODE = 2


class UnlearnError(Exception):
    """Bad input or an environment that cannot do the work; never a bug of ours."""
