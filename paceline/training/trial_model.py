"""The model that a plan trains, built without storage (or small) to ask its class what the plan needs of it: attention, wrap classes, stages, targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from paceline.algorithms.registry import ALGORITHMS
from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.models import stages
from paceline.models.factory import HFModelFactory, load_hf_config
from paceline.models.tensor_parallel import tensor_parallel_plan
from paceline.plan.plan import Plan
from paceline.plan.shrink import shrunk
from paceline.seam.model import BuildOptions
from paceline.seam.roles import Role
from paceline.strategies.deepspeed_tensor_parallel import check_tp_plan
from paceline.strategies.sharding import wrapped_classes

_STAGES = 2  # of a small sibling: whether the class can be cut does not depend on how often


def try_model(config: Config, plan: Plan) -> Iterator[Diagnostic]:
    """What the model's class cannot do of what the plan asks."""
    try:
        for role in ALGORITHMS.load(plan.algorithm).trains:
            root = _build(config, plan, role)
    except PacelineError as error:
        yield from error.diagnostics
        return
    except (
        ValueError,
        ImportError,
    ) as error:  # Transformers' words for an attention that it or this class does not have
        lines = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        what = "the model cannot be built with this attention"
        hint = "attn_implementation: auto (or eager, sdpa)"
        yield Diagnostic("model.attention", what, "model.attn_implementation", f"{config.model.attn_implementation}: {lines}"[:400], hint)  # fmt: skip
        return
    for check in (_wrap, _tensor_parallel, _stages):
        try:
            check(config, plan, root)
        except PacelineError as error:
            yield from error.diagnostics


def _build(config: Config, plan: Plan, role: Role) -> Any:
    """The root module of ``role`` on the meta device: its class, its adapters, its attention; quantised layers are left as they are."""
    adapter = None if plan.adapter is None else {**plan.adapter, "quantization": None}
    build = HFModelFactory(
        config.model, role, attention=plan.attention, recompute=plan.recompute, device=plan.device, adapter=adapter
    )
    return build(BuildOptions(device=torch.device("meta"), fused=False))


def _wrap(config: Config, plan: Plan, root: Any) -> None:
    wrap = plan.engine.get("fsdp", plan.engine).get("wrap") or {}
    if wrap.get("classes"):
        wrapped_classes(root.hf, wrap["classes"])


def _tensor_parallel(config: Config, plan: Plan, root: Any) -> None:
    if plan.mesh.tp > 1:
        check: Callable[[Any], object] = check_tp_plan if "zero_stage" in plan.engine else tensor_parallel_plan
        check(root.hf.config)


def _stages(config: Config, plan: Plan, root: Any) -> None:
    """A small sibling with weights is cut and compared: on the meta device there is nothing to compare."""
    if plan.mesh.pp == 1:
        return
    values = {**load_hf_config(config.model).to_dict()}
    small = shrunk(values, layers=2 * _STAGES) | {"vocab_size": 256, "pad_token_id": None}
    source = config.model.model_copy(update={"name_or_path": None, "config": small})
    whole = HFModelFactory(source, Role.POLICY, attention=plan.attention, device="cpu")(BuildOptions(fused=False))
    stages.split(whole, _STAGES, range(_STAGES))
