"""The model that a plan trains, built without storage (or small) to ask its class what the plan needs of it: attention, wrap classes, cuts, targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.core.tables import ALGORITHMS
from paceline.data.tokenizer import load_tokenizer, tokenizer_here, vocab_size
from paceline.generation.local import cache_for
from paceline.models import stages
from paceline.models.context_parallel import ULYSSES, check_context_parallel
from paceline.models.factory import HFModelFactory, load_hf_config
from paceline.models.tensor_parallel import how_cut
from paceline.plan.algorithms.base import algorithm_spec
from paceline.plan.plan import Plan
from paceline.plan.shrink import shrunk
from paceline.seam.model import BuildOptions
from paceline.seam.roles import Role
from paceline.strategies.deepspeed_tensor_parallel import check_tp_plan
from paceline.strategies.optimizer import trained_parameters
from paceline.strategies.sharding import Sharding, wrapped_classes
from paceline.training.models_of import Models

_STAGES = 2  # of a small sibling: whether the class can be cut does not depend on how often


def try_model(config: Config, plan: Plan) -> Iterator[Diagnostic]:
    """What the model's class, and the tokenizer beside it, cannot do of what the plan asks."""
    tokens = _Tokens(None)
    try:
        folder = tokenizer_here(config.model)
        tokens = tokens if folder is None else _Tokens(vocab_size(load_tokenizer(config.model)), folder)
    except PacelineError as error:
        yield from error.diagnostics
    try:
        roots = [
            _build(config, plan, role, tokens)
            for role in ALGORITHMS.load(plan.algorithm).trains
            if _is_here(plan, role)
        ]
        for root in roots:
            trained_parameters(root.plain_named_parameters())
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
    for check in (_wrap, _context_parallel, _tensor_parallel, _stages, _answers):
        try:
            check(config, plan, roots[0])
        except PacelineError as error:
            yield from error.diagnostics


@dataclass(frozen=True)
class _Tokens:
    """What is known of the prepared data's tokenizer before there is any."""

    vocab_size: int | None
    tokenizer_path: Path = Path()


def _build(config: Config, plan: Plan, role: Role, tokens: _Tokens) -> Any:
    """The root module of ``role`` as a worker builds it, on the meta device and not compiled."""
    models = Models(replace(plan, compile=False), config, tokens, torch.device(plan.device))
    return models.trained(role)(BuildOptions(device=torch.device("meta"), fused=False, engine_casts=True))


def _is_here(plan: Plan, role: Role) -> bool:
    """Whether the model that is named for a role lies here; one on the hub is left to its download."""
    named = algorithm_spec(plan.algorithm).model_named(plan.config["training"], role.value)
    return named is None or Path(named).expanduser().is_dir()


def _wrap(config: Config, plan: Plan, root: Any) -> None:
    wrap = plan.engine.get("fsdp", plan.engine).get("wrap") or {}
    if wrap.get("classes"):
        wrapped_classes(root.hf, wrap["classes"])


def _context_parallel(config: Config, plan: Plan, root: Any) -> None:
    if plan.mesh.cp > 1:
        method = ULYSSES if "zero_stage" in plan.engine else Sharding.of(plan.engine).cp_method
        check_context_parallel(root, plan.mesh.cp, method, plan.mesh.tp)


def _tensor_parallel(config: Config, plan: Plan, root: Any) -> None:
    if plan.mesh.tp == 1:
        return
    if "zero_stage" in plan.engine:
        check_tp_plan(root.hf.config)
    else:
        how = Sharding.of(plan.engine.get("fsdp", plan.engine))
        how_cut(root, plan.mesh.tp, sequence_parallel=how.sequence_parallel)


def _answers(config: Config, plan: Plan, root: Any) -> None:
    rollout = config.training.rollout
    if algorithm_spec(plan.algorithm).on_policy and rollout is not None and rollout.server is None:
        cache_for(root.hf, 1)


def _stages(config: Config, plan: Plan, root: Any) -> None:
    """A small sibling with weights is cut and compared: on the meta device there is nothing to compare."""
    if plan.mesh.pp == 1:
        return
    values = {**load_hf_config(config.model).to_dict()}
    small = shrunk(values, layers=2 * _STAGES) | {"vocab_size": 256, "pad_token_id": None}
    source = config.model.model_copy(update={"name_or_path": None, "config": small})
    whole = HFModelFactory(source, Role.POLICY, attention=plan.attention, device="cpu")(BuildOptions(fused=False))
    stages.split(whole, _STAGES, range(_STAGES))
