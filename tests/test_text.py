"""Numbers, sentences and tables for the screen."""

import re

from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn import text
from recbole_unlearn.report import page

# Text that must not be printed, whatever the figures are.
NONSENSE = re.compile(
    r"[-−]0(?:\.0+)?(?![\d.])"  # -0%, -0.000
    r"|(?<![\d.,])0(?:\.0+)?[x×]"  # 0.0x
    r"|(?<![\d.,])1 (?:users|items|interactions|trials|cells|candidates|models|rounds)\b"
    r"|(?:better|worse|differently|otherwise) than [^(]*\((?:AUC )?(\d\.\d+), (?:retrained )?\1\)"
)


FIGURES = st.floats(-1.5, 1.5) | st.floats(-0.01, 0.01) | st.sampled_from([-0.0, -1e-9, 0.0, -0.0005, 0.005])
FACTORS = st.floats(0, 5000) | st.floats(0, 0.01) | st.sampled_from([0.0, 0.94999, 0.95, 99.96])


@given(FIGURES, FACTORS, st.integers(0, 3))
def test_no_figure_is_written_as_nonsense(value, factor, number):
    shown = [
        text.decimal(value, 3), text.signed(value), text.percent(value), text.times(factor),
        text.speed(factor), text.counted(number, "user"), page.decimal(value), page.signed(value),
        page.percent(value), page.times(factor), page.plain(value),
    ]  # fmt: skip
    for line in shown:
        assert not NONSENSE.search(line), line


def test_factors():
    assert [text.times(x) for x in (29.14, 1203.6, 1.0, 0.4, 0.0412, 0.0)] == [
        "29.1x", "1,204x", "1.0x", "0.4x", "0.041x", "<0.001x",
    ]  # fmt: skip
    assert text.speed(0.4) == "slower than retraining: 0.4x its speed"
    assert text.speed(12) == "12.0x as fast as retraining"
    assert [text.decimal(None), text.percent(None), text.times(None)] == ["–", "–", "–"]


@given(st.lists(st.integers(1, 14), min_size=1, max_size=40), st.integers(60, 120))
def test_a_wide_table_becomes_several_and_keeps_every_column(sizes, columns):
    head = ["phase", *(f"{n}".rjust(size, "c") for n, size in enumerate(sizes))]
    rows = [["original", *("x" * size for size in sizes)], ["unlearned", *("y" for _ in sizes)]]
    table = text.drawn(head, rows, columns=columns)
    assert max(map(len, table.splitlines())) <= columns
    shown = [word for line in table.splitlines() if line.startswith("phase") for word in line.split()[1:]]
    assert shown == head[1:]
