"""The outputs of a run: `schema.py` is the contract of result.json, and the only file that is imported as the room.

`record.py` fills a result in, `disclosure.py` withholds figures of few users, `table.py` writes it for people. They
need measures, which need the schema, so they are imported by file.
"""

from recbole_unlearn.results.schema import (
    CONTROL,
    LEVELS,
    ORIGINAL,
    RETRAINED,
    SECOND,
    UNLEARNED,
    Curve,
    Distribution,
    Forgotten,
    LeftOut,
    PhaseResult,
    Placebo,
    RunResult,
    Verdict,
    Withheld,
    flat,
    in_order,
    method_phases,
    seen_from,
)
