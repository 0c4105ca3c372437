"""DeepSpeed's engine: ZeRO by a stage of its file, or by a name that fixes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.plan.batch import BatchSplit
from paceline.plan.engine import Findings, Job
from paceline.plan.engine_deepspeed import deepspeed_engine, deepspeed_mesh
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Precision
from paceline.plan.starts import CARD, Start
from paceline.plan.state_form import DEEPSPEED as FORM
from paceline.plan.strategies.base import StrategySpec

_KEEPS_PACKED = 2  # the stage under which packed weights are neither cut nor cast


@dataclass(frozen=True)
class DeepSpeed(StrategySpec):
    """Stage 1 shares out the optimizer's states, 2 gradients too, 3 weights too (Rajbhandari et al. 2020, arXiv:1910.02054)."""

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        return deepspeed_mesh(job, findings)

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> dict[str, Any]:
        return deepspeed_engine(self.zero_stage, job, mesh, batch, precision, findings)

    def start(self, engine: Mapping[str, Any]) -> Start | None:
        return CARD

    def label(self, engine: Mapping[str, Any]) -> str:
        return f"zero{engine.get('zero_stage', self.zero_stage or 0)}"

    def keeps_packed(self, engine: Mapping[str, Any]) -> bool:
        return bool(engine.get("zero_stage", self.zero_stage) == _KEEPS_PACKED)


def _zero(name: str, stage: int | None, sharding: str) -> DeepSpeed:
    return DeepSpeed(
        name, ("deepspeed",), "deepspeed", sections=frozenset({"deepspeed"}), zero_stage=stage,
        substitute=("fsdp", sharding), shards_weights=stage == 3, whole_modules=False, float64=False,
        quantised_base=stage == _KEEPS_PACKED, state_form=FORM,
    )  # fmt: skip


DEEPSPEED = _zero("deepspeed", None, "shard_grad_op")
ZERO1, ZERO2, ZERO3 = _zero("zero1", 1, "shard_grad_op"), _zero("zero2", 2, "shard_grad_op"), _zero("zero3", 3, "full_shard")  # fmt: skip
