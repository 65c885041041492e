"""What a holder of the unlearned model and the retained data learns of who asked (docs/results.md says how much)."""

import numpy as np
import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def who_asked():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))  # a script: it imports the files beside it
        import who_asked

        yield who_asked


@pytest.mark.parametrize("mark", ["none", "residual", "norm"])
def test_the_attack_finds_a_planted_mark_and_nothing_else(who_asked, mark):
    rng = np.random.default_rng(3)
    users, items, width = 400, 300, 8
    links = rng.random((users, items)) < rng.uniform(0.03, 0.15, (users, 1))
    links[:, 0] |= ~links.any(axis=1)
    tables = {"item": rng.normal(size=(items, width))}
    mean = np.stack([tables["item"][row].mean(axis=0) for row in links]) - tables["item"].mean(axis=0)
    scatter, asked = rng.normal(size=(users, width)), rng.choice(users, 40, replace=False)
    if mark == "residual":  # rows that lie on the map of their neighbours
        scatter[asked] *= 0.2
    tables["user"] = 3 * mean + 0.5 * scatter
    if mark == "norm":
        tables["user"][asked] *= 6
    aucs = who_asked.attack(tables, np.argwhere(links), asked, "user", None)
    if mark == "none":
        assert all(abs(aucs[name] - 0.5) < 0.12 for name in who_asked.STATISTICS)
    else:
        assert aucs[mark] > 0.9


@pytest.mark.slow
def test_what_the_documents_say_of_obliviate_and_of_retraining(who_asked):
    """The map from neighbours to rows hardly tells who deleted a part of their data; retraining does not at all.

    docs/results.md, docs/guarantees.md and SECURITY.md say so: they and this test change with the method.
    """
    case = who_asked.Case("BPR", 2020, 25, "ml-100k", None)
    numbers = who_asked.request(case.pairs, "part", np.random.default_rng(1))
    asked = np.unique(case.pairs[numbers, 0])
    models = (case.unlearned(numbers, method) for method in ("obliviate", "retrain"))
    unlearned, retrained = (who_asked.attack(*model, asked, "user", None) for model in models)
    assert max(unlearned[name] for name in who_asked.STATISTICS) < 0.68
    assert abs(retrained["residual"] - 0.5) < 0.1
