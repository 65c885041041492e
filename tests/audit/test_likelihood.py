"""The attacks on single pairs against closed forms and counts by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from recbole_unlearn.audit.likelihood import EMPTY, epsilon, klom, likelihood_ratios, log_normal, u_lira
from recbole_unlearn.audit.shadows import Pairs


def couples(number, pairs, seed=0):
    rng = np.random.default_rng(seed)
    halves = [rng.permutation(pairs) < pairs // 2 for _ in range(number // 2)]
    return np.array([one for half in halves for one in (half, ~half)])


def drawn(number, pairs, shift, seed=0):
    """Margins of models whose memory of a pair is ``shift``, with a level of its own for each pair."""
    rng, saw = np.random.default_rng(seed), couples(number, pairs, seed)
    return rng.normal(size=(number, pairs)) + 5 * rng.normal(size=pairs) + shift * saw, saw


def test_the_ratio_is_that_of_two_normal_distributions():
    margins, saw = drawn(8, 3, 1.0)
    ratios, apart = likelihood_ratios(margins, saw)
    others = np.arange(2, 8)  # for the first couple
    groups = [[margins[others, z][mask[others, z]] for z in range(3)] for mask in (saw, ~saw)]
    means = [np.array([one.mean() for one in group]) for group in groups]
    variances = [sum(((one - one.mean()) ** 2).sum() for one in group) / (2 * 3) for group in groups]
    for model in (0, 1):
        own = [
            stats.norm(mean, math.sqrt(v)).logpdf(margins[model]) for mean, v in zip(means, variances, strict=True)
        ]
        assert ratios[model] == pytest.approx(own[0] - own[1])
    assert apart[0] == pytest.approx(np.abs(means[0] - means[1]))
    assert log_normal(np.zeros(1), np.zeros(1), 1.0) == 0.0


@given(st.integers(0, 10**6), st.sampled_from([4, 8, 16]))
def test_where_nothing_is_left_names_of_groups_do_not_matter(seed, number):
    margins, saw = drawn(number, 60, 0.0, seed)
    one, other = u_lira(margins, saw), u_lira(margins, ~saw)
    # Exchanging the groups turns every ratio around and members into others: the same AUC, so .5 is its mean.
    assert one["auc"] == pytest.approx(other["auc"], abs=2e-4)


@pytest.mark.parametrize(("shift", "number"), [(0.0, 8), (0.0, 32), (2.0, 64)])
def test_the_attack_finds_what_is_there_and_no_more(shift, number):
    found = u_lira(*drawn(number, 2000, shift))
    best = stats.norm.cdf(shift / math.sqrt(2))  # of two normal distributions that are known
    assert found["auc"] == pytest.approx(best, abs=0.012)
    expected = stats.norm.sf(stats.norm.isf(0.01) - shift)
    assert found["tpr@1%fpr"] == pytest.approx(expected, abs=0.03 if shift else 0.004)
    assert found["worst"]["auc"] == pytest.approx(best, abs=0.02)
    assert found["curve"][0][0] == 0.0
    assert found["curve"][-1] == (1.0, 1.0)


def test_the_worst_tenth_are_the_pairs_with_memory():
    margins, saw = drawn(16, 1000, 0.0)
    margins[:, :100] += 3.0 * saw[:, :100]
    found = u_lira(margins, saw)
    assert found["worst"]["auc"] > 0.95
    assert found["auc"] < 0.6


def test_epsilon_of_a_count_by_hand():
    one, other = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[2.5], [3.5], [4.5], [5.5]])
    # At 2.5, `other` or more: FNR 0. At 3 of `one` or more: FPR 3/4, FNR 3/4 read the other way: 1/4 and 1/4.
    assert epsilon(one, other) == pytest.approx(math.log((1 - 1e-5 - 0.25) / 0.25))
    assert epsilon(one, one) == pytest.approx(0.0, abs=1e-12)
    assert epsilon(one, one + 9) == pytest.approx(math.log((1 - 1e-5 - 0.125) / 0.125))


def test_klom_is_the_divergence_of_two_histograms():
    one, other = np.array([[0.0], [0.0], [0.0], [1.0]]), np.array([[0.0], [1.0], [1.0], [1.0]])
    p, q = np.array([0.75, 0.25]) + EMPTY, np.array([0.25, 0.75]) + EMPTY
    assert klom(one, other) == pytest.approx((p * np.log(p / q)).sum())
    assert klom(one, one) == pytest.approx(0.0)
    assert klom(one, one + 500) == pytest.approx(klom(np.clip(one, -100, 100), np.full((4, 1), 100.0)))
    assert klom(np.zeros((4, 1)), np.zeros((4, 1))) == 0.0


class Scorer:
    """As much of a trainer as margins ask for."""

    test_batch_size = 40  # two users at a time

    def __init__(self, scores):
        self.table = scores

    def scores(self, users, dataset):
        found = self.table[users].clone()
        found[:, 0] = -torch.inf
        return found


def test_margins_compare_a_pair_with_all_other_items():
    table = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    table[4, 7] = 80.0  # a probability that rounds to 1
    users, items = torch.tensor([3, 1, 4, 1, 4]), torch.tensor([2, 19, 7, 1, 3])
    train = type("Train", (), {"item_num": 20})
    found = Pairs(users, items, (2, 4)).margins(Scorer(table), train)
    for user, item, margin in zip(users, items, found, strict=True):
        others = [n for n in range(1, 20) if n != item]
        exact = table[user, item].double() - table[user, others].double().logsumexp(0)
        assert margin == pytest.approx(min(float(exact), -math.log(1e-12)), abs=1e-5)
