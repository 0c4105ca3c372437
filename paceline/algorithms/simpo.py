"""Simple preference optimisation: mean log-probabilities per token, with a margin and without a reference."""

from __future__ import annotations

from paceline.algorithms.cpo import CPO
from paceline.config.sections.preference import SimpoOptions
from paceline.core.json_types import Json


class SimPO(CPO):
    """The loss of a pair is -log σ(β (M_chosen - M_rejected) - γ), with M = log π(y|x) / |y| and γ =
    ``simpo_gamma``.

    Meng et al. 2024 (arXiv:2405.14734, eq. 6). The same as TRL's CPOConfig(loss_type="simpo", cpo_alpha=0);
    ``cpo_alpha`` above 0 adds CPO's SFT term.
    """

    def __init__(self, **options: Json) -> None:
        super().__init__(loss_type="simpo", **SimpoOptions.model_validate(options).model_dump())
