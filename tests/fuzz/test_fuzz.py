"""The fuzz and the kills, as part of the tests; benchmarks/robustness.py does more of both and prints the counts."""

import pytest

from tests.fuzz import campaign, crash_cases


@pytest.mark.slow
def test_two_thousand_hostile_files(tiny_path, tmp_path):
    """Every one is refused in one line or read as what it is: no traceback, no crash, no hang, no code."""
    found = campaign.run(range(2000), tiny_path, tmp_path / "fuzz")
    bad = {seed: what for seed, what in found.items() if what.split(":")[0] not in campaign.GOOD}
    assert (bad, len(found)) == ({}, 2000)
    counted = campaign.counts(found)
    assert min(counted["refused"], counted["ran"]) > 200  # it is a fuzz of something


@pytest.mark.slow
def test_runs_that_are_killed(tiny_path, tmp_path):
    """The output directory is as before, or holds the whole new result; the next run succeeds and tidies up."""
    found = crash_cases.campaign(18, tiny_path, tmp_path / "kills")
    good = ("as before", "the whole new result", "without a result, which the next run says")
    assert sum(found[kind] for kind in good) == 18, found
    assert (found["the next run succeeds"], found["temporary files that stay"]) == (18, 0)
