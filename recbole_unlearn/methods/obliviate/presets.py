"""Obliviate as the paper prints it, and its ablations: the same code with other values (`properties/method/`).

Two things are not as printed, since they cannot be: the sign of the downdate, which would learn S a second time, and
its scale, which the paper leaves open and a line search finds. Weights and learning rate are not printed either.
"""

from __future__ import annotations

from recbole_unlearn.methods import method
from recbole_unlearn.methods.obliviate.method import Obliviate, ObliviateSettings


@method(
    "obliviate_paper",
    "Obliviate with the paper's objective, ranks and step counts (and the right sign).",
    ObliviateSettings,
    models="differentiable, with rows of users or items; closed forms (EASE), exactly",
)
class ObliviatePaper(Obliviate):
    """λ_u reverse ranking on S + λ_d distillation on R + λ_r ‖Δθ‖², from the rank-r downdate on."""


@method(
    "no_lua",
    "obliviate_paper without stage 1: calibration from the original's weights.",
    ObliviateSettings,
    models="differentiable, with rows of users or items; closed forms (EASE), exactly",
)
class NoLUA(ObliviatePaper):
    """LAC alone."""


@method(
    "no_lac",
    "obliviate_paper without stage 2: the rank-r downdate alone.",
    ObliviateSettings,
    models="differentiable, with rows of users or items; closed forms (EASE), exactly",
)
class NoLAC(ObliviatePaper):
    """LUA alone."""


@method(
    "no_distill",
    "obliviate_paper without distillation of retained pairs.",
    ObliviateSettings,
    models="differentiable, with rows of users or items; closed forms (EASE), exactly",
)
class NoDistill(ObliviatePaper):
    """LUA and LAC, with λ_d = 0."""
