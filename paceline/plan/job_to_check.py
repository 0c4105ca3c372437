"""What checks see of a job: before it is planned (``JobToCheck``), and its choices (``Combination``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paceline.config.schema import Config
from paceline.config.sections.types import Section
from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.plan.mesh import Mesh
from paceline.plan.plan import AdapterSpec, OptimizerSpec, Precision


class JobToCheck(Protocol):
    """A job before planning (``rules.rule.Context``): config, algorithm options, and which keys were set."""

    @property
    def config(self) -> Config: ...

    @property
    def world_size(self) -> int | None:
        """Number of processes; None if not known yet."""
        ...

    @property
    def own_options(self) -> Section | None:
        """The config section of the job's algorithm, if given."""
        ...

    def given(self, path: str) -> bool:
        """Whether a layer above the defaults set this key."""
        ...

    def problem(
        self,
        code: Code,
        what: str,
        *paths: str,
        hint: str,
        found: str = "",
        severity: Severity = Severity.ERROR,
    ) -> Diagnostic:
        """Return a problem with some keys, located in the config and with their values."""
        ...

    def at(self, finding: Diagnostic, *paths: str) -> Diagnostic:
        """Return a finding with the place and, where it has no ``found``, the values of some keys."""
        ...


@dataclass(frozen=True)
class Combination:
    """The choices for a run. ``strategy`` and ``mesh`` are None where they could not be chosen.

    ``compiled``: by torch.compile; ``full_eval``: dtypes (``bf16``, ``fp16``) requested for evaluation;
    ``pure_bf16``: weights in bfloat16 alone are requested.
    """

    precision: Precision
    optimizer: OptimizerSpec
    adapter: AdapterSpec | None
    compiled: bool
    full_eval: tuple[str, ...] = ()
    strategy: str | None = None
    mesh: Mesh | None = None
    pure_bf16: bool = False
