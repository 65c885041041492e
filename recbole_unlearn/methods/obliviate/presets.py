"""Obliviate as the paper prints it, and its ablations: the same code with other values (`properties/method/`).

Two things are not as printed, since they cannot be: the sign of the downdate, which would learn S a second time, and
its scale, which the paper leaves open and a line search finds. Weights and learning rate are not printed either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

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

    on_sequences = False  # its losses are of pairs
    forgets_more: ClassVar[Sequence[str]] = ("raise lac_steps", "raise lac_forget", "lower lac_distill")
    forgets_less: ClassVar[Sequence[str]] = ("lower lac_steps", "lower lac_forget", "raise lac_distill")


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

    forgets_more = forgets_less = ()


@method(
    "no_distill",
    "obliviate_paper without distillation of retained pairs.",
    ObliviateSettings,
    models="differentiable, with rows of users or items; closed forms (EASE), exactly",
)
class NoDistill(ObliviatePaper):
    """LUA and LAC, with λ_d = 0."""

    forgets_more = ("raise lac_steps", "raise lac_forget")
    forgets_less = ("lower lac_steps", "lower lac_forget")
