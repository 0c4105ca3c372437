"""Build the planned model without storage and check attention, wrap classes, splits and targets.

Pipeline stages are checked on a shrunken copy with weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from paceline.algorithms.algorithm import algorithm_class
from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.data.tokenizer.load import load_tokenizer, tokenizer_here, vocab_size
from paceline.generation.decoding.layer_states import cache_for
from paceline.launch.environment.guide_variables import current
from paceline.models import codes as models_codes
from paceline.models.attention.context_parallel import ULYSSES, check_context_parallel
from paceline.models.attention.rope_per_document import DocumentRope
from paceline.models.factory import HFModelFactory
from paceline.models.loading.model_source import load_hf_config
from paceline.models.parallel import pipeline_stages
from paceline.models.parallel.tensor_parallel_cut import how_cut
from paceline.models.vision.whole_model import text_model
from paceline.plan.algorithms.rollout import any_answers
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.model.files.unusual_config import impossible, unusual
from paceline.plan.model.read_config import model_config
from paceline.plan.model.shrink import shrunk
from paceline.plan.plan import Plan
from paceline.protocols.model import BuildOptions, RootModule
from paceline.protocols.roles import Role
from paceline.strategies.deepspeed.autotp import check_tp_plan
from paceline.strategies.fsdp.wrapping import wrapped_classes
from paceline.strategies.optimizers.build import trained_parameters
from paceline.training import codes
from paceline.training.run.model_factories import Models

_STAGES = 2  # of a small sibling: whether the class can be split does not depend on the number


def try_model(config: Config, plan: Plan) -> Iterator[Diagnostic]:
    """Yield the plan's requirements that the model's class or tokenizer cannot meet."""
    # Config and tokenizer: without the former there is nothing to build
    try:
        load_hf_config(config.model)
    except PacelineError as error:  # loading its tokenizer would only repeat the error
        yield from error.diagnostics
        return
    tokens = _Tokens(None)
    try:
        folder = tokenizer_here(config.model)
        tokens = tokens if folder is None else _Tokens(vocab_size(load_tokenizer(config.model)), folder)
    except PacelineError as error:
        yield from error.diagnostics
    # Build every trained model on the meta device
    try:
        roots = [
            _build(config, plan, role, tokens)
            for role in algorithm_class(plan.algorithm).trains
            if _is_here(config, plan, role)
        ]
        for root in roots:
            trained_parameters(root.plain_named_parameters())
    except PacelineError as error:
        yield from error.diagnostics
        return
    except (
        Exception
    ) as error:  # in its library's own words: an attention it does not have, or values it cannot build from
        yield _not_built(config, error)
        return
    # Check the first model against the plan
    for check in (_numbers, _frequencies, _wrap, _context_parallel, _tensor_parallel, _stages, _answers):
        try:
            check(config, plan, roots[0])
        except PacelineError as error:
            yield from error.diagnostics


def _not_built(config: Config, error: Exception) -> Diagnostic:
    m = config.model
    odd = unusual(model_config(m, current()), written=bool(m.config))
    lines = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if isinstance(error, (ValueError, ImportError)) and (m.attn_implementation != "auto" or not odd):
        return codes.MODEL_ATTENTION("model.attn_implementation", f"{m.attn_implementation}: {lines}"[:400])
    reason = f"{', '.join(odd) or 'its sizes'}: {type(error).__name__}: {lines}"[:400]
    return models_codes.MODELS_BAD_CONFIG(
        "this model cannot be built from its config", _where(config), reason, _HINT
    )


def _numbers(config: Config, plan: Plan, root: RootModule) -> None:
    """Reject numbers that every class accepts but that give no usable result."""
    if wrong := impossible(model_config(config.model, current())):
        raise ConfigError(
            models_codes.MODELS_BAD_CONFIG(
                "a step cannot be computed with these values in the model's config",
                _where(config),
                ", ".join(wrong),
                "epsilons must be above 0, dropouts from 0 to 1",
            )
        )


def _frequencies(config: Config, plan: Plan, root: RootModule) -> None:
    """Reject rotary frequencies that are not finite, as from a base or a factor of zero."""
    kinds = {
        type(m)
        for m in text_model(root.hf).modules()
        if type(m).__module__.startswith("transformers.")
        and type(m).__name__.endswith("RotaryEmbedding")
        and not isinstance(m, DocumentRope)
        and "config" in vars(m)
    }
    for kind in kinds:
        embedding = kind(config=root.hf.config.get_text_config())
        wrong = [name for name, buffer in embedding.named_buffers() if not bool(torch.isfinite(buffer).all())]
        if wrong:
            what, frequencies = (
                "the rotary positions of this model's config are not finite numbers",
                f"{kind.__name__}: {wrong[0]}",
            )
            rope = getattr(embedding.config, "rope_parameters", None)
            raise ConfigError(
                models_codes.MODELS_BAD_CONFIG(
                    what,
                    _where(config),
                    f"{frequencies} of {rope}"[:400],
                    "rope_theta: 10000, with a factor of 1 or more",
                )
            )


def _where(config: Config) -> str:
    return "model.config" if config.model.config else "model.name_or_path"


_HINT = "follow its message, or remove the key: the family's default value is then used"


@dataclass(frozen=True)
class _Tokens:
    """What is known about the tokenizer before the data is prepared."""

    vocab_size: int | None
    tokenizer_path: Path = Path()


def _build(config: Config, plan: Plan, role: Role, tokens: _Tokens) -> RootModule:
    """Build the root module of ``role`` as a worker does, but on the meta device and not compiled."""
    models = Models(replace(plan, compile=False), config, tokens, torch.device(plan.device))
    return models.trained(role)(BuildOptions(device=torch.device("meta"), fused=False, engine_casts=True))


def _is_here(config: Config, plan: Plan, role: Role) -> bool:
    """Whether the model named for a role is a local folder; one on the hub is left to its download."""
    model = algorithm_spec(plan.algorithm).model_named(config.training, role.value)
    return model is None or Path(model).expanduser().is_dir()


def _wrap(config: Config, plan: Plan, root: RootModule) -> None:
    how = plan.engine.sharded
    if how is not None and how.wrap.classes:
        wrapped_classes(root.hf, how.wrap.classes)


def _context_parallel(config: Config, plan: Plan, root: RootModule) -> None:
    if plan.mesh.cp > 1:
        how = plan.engine.sharded
        method = ULYSSES if how is None else how.cp_method
        check_context_parallel(root, plan.mesh.cp, method, plan.mesh.tp)


def _tensor_parallel(config: Config, plan: Plan, root: RootModule) -> None:
    if plan.mesh.tp == 1:
        return
    how = plan.engine.sharded
    if how is None:
        check_tp_plan(root.hf.config)
    else:
        how_cut(root, plan.mesh.tp, sequence_parallel=how.sequence_parallel)


def _answers(config: Config, plan: Plan, root: RootModule) -> None:
    generation = any_answers(algorithm_spec(plan.algorithm), config.training, config.generation)
    if generation is not None and not generation.all_servers:
        cache_for(root.hf, 1)


def _stages(config: Config, plan: Plan, root: RootModule) -> None:
    """Split a shrunken copy with real weights and compare outputs: the meta device has no values to
    compare."""
    if plan.mesh.pp == 1:
        return
    values = {**load_hf_config(config.model).to_dict()}
    small = shrunk(values, layers=2 * _STAGES) | {"vocab_size": 256, "pad_token_id": None}
    source = config.model.model_copy(update={"name_or_path": None, "config": small})
    root_module = HFModelFactory(source, Role.POLICY, attention=plan.attention, device="cpu")(
        BuildOptions(fused=False)
    )
    pipeline_stages.split(root_module, _STAGES, range(_STAGES))
