"""Rules for the model, the tokenizer, activation checkpointing and remote code."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config import codes as config_codes
from paceline.config.nearest import nearest
from paceline.core import codes as core_codes
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.patterns import is_pattern
from paceline.core.remote_code import COMMIT, unpinned
from paceline.plan.hardware.kinds import CPU, MPS
from paceline.plan.model.balance import config_coefficient
from paceline.plan.model.read_shape import text_part
from paceline.plan.recomputation import KEY as KEPT
from paceline.plan.recomputation import KINDS
from paceline.rules import codes
from paceline.rules.base import Context, Rule


def given(c: Context) -> Iterator[Diagnostic]:
    """model.missing, model.two, model.tokenizer"""
    m = c.config.model
    if m.name_or_path and m.config is not None:
        yield c.problem(
            codes.MODEL_TWO,
            "name_or_path loads weights, config creates a new model; give only one",
            "model.name_or_path",
            "model.config",
            found="name_or_path and config",
            hint="keep one of the two",
        )
    if c.starting and not m.name_or_path and m.config is None:
        yield c.problem(
            codes.MODEL_MISSING,
            "there is no model to train",
            "model.name_or_path",
            found="no model.name_or_path and no model.config",
            hint="model:\n             name_or_path: Qwen/Qwen3-0.6B",
        )
    if c.starting and m.config is not None and not m.name_or_path and not m.tokenizer:
        yield c.problem(
            codes.MODEL_TOKENIZER,
            "a model created from scratch needs a tokenizer",
            "model.tokenizer",
            found="no model.tokenizer",
            hint="model:\n             tokenizer: folder or hub name",
        )
    if m.config is not None and "model_type" not in m.config:
        yield c.problem(
            codes.MODEL_TYPE,
            "model.config needs model_type, the architecture",
            "model.config",
            found=f"config with {', '.join(list(m.config)[:5]) or 'nothing'}",
            hint="config: {model_type: llama, hidden_size: 512, …}",
        )


#: Keys of ``model.config`` that record where a config.json came from and do not describe the model.
_BOOKKEEPING = frozenset({"model_type", "_name_or_path", "transformers_version", "architectures"})
#: Keys of Transformers' config classes that have no effect on a model made from scratch → what to use.
_ELSEWHERE = {
    "attn_implementation": "model.attn_implementation",
    "_attn_implementation": "model.attn_implementation",
    "dtype": "training.mixed_precision",
    "torch_dtype": "training.mixed_precision",
    "quantization_config": "lora.quantization_bit",
    "auto_map": "model.name_or_path with model.trust_remote_code",
}


def shape_keys(c: Context) -> Iterator[Diagnostic]:
    """model.config_key, model.config_unread"""
    shape, fields, words = c.config.model.config, c.facts.config_fields, c.facts.config_words
    if shape is None or fields is None or words is None:
        return
    # Keys of the config and of its text_config that nothing in the model family's code reads
    inner = shape.get("text_config")
    written = [key for part in (shape, inner if isinstance(inner, dict) else {}) for key in part]
    unread = []
    for key in dict.fromkeys(written):
        if key in _BOOKKEEPING or (key in words and key not in _ELSEWHERE):
            continue
        near = [] if key in _ELSEWHERE else nearest(key, fields)
        if near:
            yield c.problem(
                codes.MODEL_CONFIG_KEY,
                f"models of type {shape['model_type']} have no key '{key}'",
                "model.config",
                found=f"{key}: {shape.get(key, (inner or {}).get(key))}",
                hint=f"did you mean {' or '.join(repr(one) for one in near)}?",
            )
        else:
            unread.append(key)
    # Those without a similar known key are reported together
    if unread:
        instead = dict.fromkeys(_ELSEWHERE[key] for key in unread if key in _ELSEWHERE)
        yield c.problem(
            codes.MODEL_CONFIG_UNREAD,
            f"these keys have no effect in a model of type {shape['model_type']} created from scratch",
            "model.config",
            found=", ".join(unread),
            hint="; ".join(["remove them", *instead]),
            severity=Severity.WARNING,
        )


def remote_code(c: Context) -> Iterator[Diagnostic]:
    """sec.trust_remote_code"""
    m = c.config.model
    wrong = unpinned(m.name_or_path or "", m.revision) if m.trust_remote_code else None
    if wrong is not None:
        keys = ("model.trust_remote_code", "model.revision")
        yield c.problem(
            core_codes.SEC_TRUST_REMOTE_CODE, wrong.what, *keys, found=wrong.found, hint=wrong.hint
        )


def dtype(c: Context) -> Iterator[Diagnostic]:
    """model.dtype"""
    if c.config.model.dtype in ("bfloat16", "float16") and not c.config.training.pure_bf16:
        yield c.problem(
            codes.MODEL_DTYPE,
            "trained weights are kept in float32; training.mixed_precision sets the compute precision",
            "model.dtype",
            hint="set mixed_precision: bf16 to compute in bf16, and remove dtype",
            severity=Severity.WARNING,
        )


def attention(c: Context) -> Iterator[Diagnostic]:
    """model.attention_cpu, par.cp_attention, sec.attention_kernel"""
    name = c.config.model.attn_implementation
    if "/" in name and not (c.config.model.trust_remote_code and COMMIT.search(name.partition("@")[2])):
        yield c.problem(
            codes.SEC_ATTENTION_KERNEL,
            "an attention named org/repository is code from the hub",
            "model.attn_implementation",
            hint=(
                "set attn_implementation: auto; or org/repository@COMMIT, the 40 digits of the"
                " commit you have reviewed, with trust_remote_code: true"
            ),
        )
    if name.startswith("flash_attention") and (
        c.config.training.use_cpu or c.facts.device in (CPU.name, MPS.name)
    ):
        yield c.problem(
            codes.MODEL_ATTENTION_CPU,
            f"{name} needs a CUDA device",
            "model.attn_implementation",
            hint="attn_implementation: auto",
        )
    sizes = c.config.training.parallelism
    if sizes is not None and sizes.cp_size > 1 and name not in ("auto", "paceline"):
        yield c.problem(
            codes.PAR_CP_ATTENTION,
            f"context parallelism works with Paceline's own packed attention only; {name} computes"
            " complete rows",
            "model.attn_implementation",
            "training.parallelism.cp_size",
            hint="attn_implementation: auto",
        )


def _kept(c: Context, value: object) -> Iterator[Diagnostic]:
    """config.value, train.recompute_compiled"""
    kinds = value if isinstance(value, (list, tuple)) else (value,)
    key = "training.gradient_checkpointing_kwargs"
    if not kinds or any(kind not in KINDS for kind in kinds):
        yield c.problem(
            config_codes.CONFIG_VALUE,
            f"{KEPT} names kinds of operators whose outputs are kept",
            key,
            found=str(value),
            hint=f"{KEPT}: [{', '.join(KINDS)}], or one of them",
        )
    if c.config.training.torch_compile:
        yield c.problem(
            codes.TRAIN_RECOMPUTE_COMPILED,
            "the operators of a compiled layer are not seen one by one, so that none can be kept",
            key,
            "training.torch_compile",
            hint=f"remove {KEPT}, or set torch_compile: false",
        )


def recompute(c: Context) -> Iterator[Diagnostic]:
    """train.reentrant, fsdp.act_ckpt_twice"""
    t = c.config.training
    options = t.gradient_checkpointing_kwargs or {}
    if options.get("use_reentrant") is True:
        yield c.problem(
            codes.TRAIN_REENTRANT,
            "reentrant recomputation loses gradients of frozen inputs; only the non-reentrant"
            " implementation is supported",
            "training.gradient_checkpointing_kwargs",
            hint="gradient_checkpointing_kwargs: {use_reentrant: false}",
        )
    unknown = [
        key
        for key in options
        if key not in (KEPT, "use_reentrant", "preserve_rng_state", "determinism_check", "debug")
    ]
    if unknown:
        yield c.problem(
            config_codes.CONFIG_UNKNOWN_KEY,
            "gradient_checkpointing_kwargs has no such option",
            "training.gradient_checkpointing_kwargs",
            found=", ".join(unknown),
            hint=f"use_reentrant, {KEPT}",
        )
    if KEPT in options:
        yield from _kept(c, options[KEPT])
    # Set twice, or given while it is off
    if options and not t.gradient_checkpointing:
        yield c.problem(
            codes.TRAIN_RECOMPUTE_OFF,
            "options of recomputation are given, but recomputation is off",
            "training.gradient_checkpointing_kwargs",
            "training.gradient_checkpointing",
            hint="set gradient_checkpointing: true, or remove them",
            severity=Severity.WARNING,
        )
    fsdp = t.fsdp_config if isinstance(t.fsdp_config, dict) else {}
    inside = fsdp.get("activation_checkpointing", fsdp.get("fsdp_activation_checkpointing"))
    if (
        inside is True
        and t.gradient_checkpointing
        and c.given("training.gradient_checkpointing")
        and c.provenance["training.gradient_checkpointing"].layer != "foreign file"
    ):
        yield c.problem(
            codes.FSDP_ACT_CKPT_TWICE,
            "recomputation is requested twice: by fsdp_config and by gradient_checkpointing",
            "training.gradient_checkpointing",
            "training.fsdp_config",
            found="activation_checkpointing and gradient_checkpointing",
            hint="keep one of the two",
        )


def compile_options(c: Context) -> Iterator[Diagnostic]:
    """train.compile_off"""
    t = c.config.training
    for name in ("torch_compile_backend", "torch_compile_mode"):
        if getattr(t, name) is not None and not t.torch_compile:
            yield c.problem(
                codes.TRAIN_COMPILE_OFF,
                f"{name} is given, but torch_compile is off",
                f"training.{name}",
                "training.torch_compile",
                hint="torch_compile: true",
                severity=Severity.WARNING,
            )


def router_scope(c: Context) -> Iterator[Diagnostic]:
    """train.router_scope"""
    t, config = c.config.training, c.config.model.config
    requested = (
        bool(config_coefficient(text_part(config))) if config else c.config.model.name_or_path is not None
    )
    idle = t.router_aux_loss_coef == 0 or (t.router_aux_loss_coef is None and not requested)
    if idle and c.given("training.router_aux_loss_scope"):
        yield c.problem(
            codes.TRAIN_ROUTER_SCOPE,
            "router_aux_loss_scope is given, but there is no balance loss",
            "training.router_aux_loss_scope",
            "training.router_aux_loss_coef",
            hint="router_aux_loss_coef: 0.001",
            severity=Severity.WARNING,
        )


def adapters(c: Context) -> Iterator[Diagnostic]:
    """dpo.lm_head_adapter, peft.bits, peft.quant_bias, peft.pattern, peft.resize_quant"""
    lora = c.config.lora
    if lora is None:
        return
    if "lm_head" in lora.target_modules:
        yield c.problem(
            codes.DPO_LM_HEAD_ADAPTER,
            "an adapter on lm_head would never train, because the loss uses the head's own weight",
            "lora.target_modules",
            hint="leave lm_head out of target_modules; modules_to_save: [lm_head] trains the head in full",
        )
    if len(lora.target_modules) > 1 and any(map(is_pattern, lora.target_modules)):
        yield c.problem(
            codes.PEFT_PATTERN,
            "a regular expression must stand alone: it matches complete names, a list matches name endings",
            "lora.target_modules",
            hint="write one expression with | in it, or a list of plain names",
        )
    if lora.quantization_bit not in (None, 4):
        yield c.problem(
            codes.PEFT_BITS,
            "weights can be quantised to 4 bits only",
            "lora.quantization_bit",
            hint="quantization_bit: 4",
        )
    if lora.quantization_bit and lora.bias != "none":
        yield c.problem(
            codes.PEFT_QUANT_BIAS,
            "biases of quantised layers are kept in the compute dtype and cannot be trained",
            "lora.bias",
            "lora.quantization_bit",
            hint="set bias: none, or remove quantization_bit",
        )
    if lora.quantization_bit and (c.config.model.add_tokens or c.config.model.add_special_tokens):
        yield c.problem(
            codes.PEFT_RESIZE_QUANT,
            "a quantised embedding cannot get new rows",
            "lora.quantization_bit",
            found="quantization_bit with added tokens",
            hint="remove quantization_bit, or the added tokens",
        )


def added_tokens(c: Context) -> Iterator[Diagnostic]:
    """model.added_tokens"""
    m, seen = c.config.model, set[str]()
    for key in ("add_tokens", "add_special_tokens"):
        tokens = getattr(m, key)
        twice = [t for i, t in enumerate(tokens) if t in seen or t in tokens[:i]]
        wrong = "an empty text" if "" in tokens else f"{twice[0]!r} twice" if twice else ""
        if wrong:
            yield c.problem(
                codes.MODEL_ADDED_TOKENS,
                "an added token must be a non-empty text, listed once",
                f"model.{key}",
                found=wrong,
                hint=f"{key} without it",
            )
        seen |= set(tokens)


MODEL_RULES: tuple[Rule, ...] = (
    given,
    added_tokens,
    shape_keys,
    remote_code,
    dtype,
    attention,
    recompute,
    compile_options,
    adapters,
    router_scope,
)
