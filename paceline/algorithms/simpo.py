"""Simple preference optimisation: chosen answers become likelier a token than rejected ones, by a margin; no reference is asked."""

from __future__ import annotations

from paceline.algorithms.cpo import CPO
from paceline.config.sections.preference import SimpoOptions


class SimPO(CPO):
    """A pair's loss is -log σ(β (M_chosen - M_rejected) - γ), M being log π(y|x) / |y|: Meng et al. 2024 (arXiv:2405.14734, eq. 6), γ ``simpo_gamma``.

    What TRL trains by CPOConfig(loss_type="simpo", cpo_alpha=0); ``cpo_alpha`` above 0 adds CPO's SFT term.
    """

    def __init__(self, **options: object) -> None:
        super().__init__(loss_type="simpo", **SimpoOptions.model_validate(options).model_dump())
