"""Rules for the model, the tokenizer, activation checkpointing and remote code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from paceline.config import codes as config_codes
from paceline.config.keys.nearest import nearest
from paceline.config.sections.lora import LoraSection, is_pattern
from paceline.core.diagnostics import Diagnostic
from paceline.core.security.remote_code import COMMIT, unpinned
from paceline.plan.hardware.device_kinds import CPU, MPS
from paceline.plan.model.files.folder_check import adapter_base
from paceline.plan.model.read_config import text_part
from paceline.plan.model.shape import config_coefficient
from paceline.plan.plan import KEEP, KEPT_KINDS
from paceline.rules import codes
from paceline.rules.device import can_scale_loss
from paceline.rules.rule import Context, Rule


def _name_of_base(lora: LoraSection | None) -> str:
    """Return the line that names a model: an adapter's folder names its base."""
    folder = lora.adapter_name_or_path if lora is not None else None
    base = adapter_base(folder) if folder else ""
    why = f", as base_model_name_or_path in {folder}/adapter_config.json says" if base else ""
    return f"model:\n             name_or_path: {base or 'Qwen/Qwen3-0.6B'}{why}"


def given(c: Context) -> Iterator[Diagnostic]:
    """model.missing, model.two, model.tokenizer"""
    m = c.config.model
    if m.name_or_path and m.config is not None:
        yield c.at(codes.MODEL_TWO(found="name_or_path and config"), "model.name_or_path", "model.config")
    if c.starting and not m.name_or_path and m.config is None:
        yield c.at(
            codes.MODEL_MISSING(
                found="no model.name_or_path and no model.config", hint=_name_of_base(c.config.lora)
            ),
            "model.name_or_path",
        )
    if c.starting and m.config is not None and not m.name_or_path and not m.tokenizer:
        yield c.at(codes.MODEL_TOKENIZER(found="no model.tokenizer"), "model.tokenizer")
    if m.config is not None and "model_type" not in m.config:
        yield c.at(
            codes.MODEL_TYPE(found=f"config with {', '.join(list(m.config)[:5]) or 'nothing'}"),
            "model.config",
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
            yield c.at(
                codes.MODEL_CONFIG_KEY(
                    found=f"{key}: {shape.get(key, (inner or {}).get(key))}",
                    model_type=shape["model_type"],
                    key=key,
                    near=" or ".join(repr(name) for name in near),
                ),
                "model.config",
            )
        else:
            unread.append(key)
    # Those without a similar known key are reported together
    if unread:
        instead = dict.fromkeys(_ELSEWHERE[key] for key in unread if key in _ELSEWHERE)
        yield c.at(
            codes.MODEL_CONFIG_UNREAD(
                found=", ".join(unread),
                model_type=shape["model_type"],
                hint="; ".join(["remove them", *instead]),
            ),
            "model.config",
        )


def remote_code(c: Context) -> Iterator[Diagnostic]:
    """sec.trust_remote_code"""
    wrong = (
        unpinned(c.config.model.name_or_path or "", c.config.model.revision)
        if c.config.model.trust_remote_code
        else None
    )
    if wrong is not None:
        yield c.at(wrong, "model.trust_remote_code", "model.revision")


def dtype(c: Context) -> Iterator[Diagnostic]:
    """model.dtype"""
    requested = {"bfloat16": "bf16", "float16": "fp16"}.get(c.config.model.dtype or "")
    if requested is None or c.training.pure_bf16:
        return
    # bf16 has no loss scale; a device without it, or a run that computes in 16 bits already, stays as it is
    scaled = c.facts.fp16 and can_scale_loss(c)
    word = "bf16" if c.facts.bf16 is not False else "fp16" if scaled else ""
    remedy = "remove dtype"
    if word and c.training.mixed_precision not in ("bf16", "fp16"):
        remedy = f"set mixed_precision: {word} to compute in {word}, and remove dtype"
    yield c.at(codes.MODEL_DTYPE(hint=remedy), "model.dtype")


def attention(c: Context) -> Iterator[Diagnostic]:
    """model.attention_cpu, par.cp_attention, sec.attention_kernel"""
    name = c.config.model.attn_implementation
    if "/" in name and not (c.config.model.trust_remote_code and COMMIT.search(name.partition("@")[2])):
        yield c.problem(
            codes.SEC_ATTENTION_KERNEL,
            "an attention named org/repository is code from the hub",
            "model.attn_implementation",
            hint="set attn_implementation: auto; or org/repository@COMMIT, the 40 digits of the"
            " commit you have reviewed, with trust_remote_code: true",
        )
    if name.startswith("flash_attention") and (c.training.use_cpu or c.facts.device in (CPU.name, MPS.name)):
        yield c.at(codes.MODEL_ATTENTION_CPU(name=name), "model.attn_implementation")
    sizes = c.training.parallelism
    if sizes is not None and sizes.cp_size > 1 and name not in ("auto", "paceline"):
        yield c.at(
            codes.PAR_CP_ATTENTION(name=name), "model.attn_implementation", "training.parallelism.cp_size"
        )


def _kept(c: Context, value: object) -> Iterator[Diagnostic]:
    """config.value, train.recompute_compiled"""
    kinds = value if isinstance(value, (list, tuple)) else (value,)
    key = "training.gradient_checkpointing_kwargs"
    if not kinds or any(kind not in KEPT_KINDS for kind in kinds):
        yield c.problem(
            config_codes.CONFIG_VALUE,
            f"{KEEP} names kinds of operators whose outputs are kept",
            key,
            found=str(value),
            hint=f"{KEEP}: [{', '.join(KEPT_KINDS)}], or one of them",
        )
    if c.training.torch_compile:
        yield c.at(codes.TRAIN_RECOMPUTE_COMPILED(kept=KEEP), key, "training.torch_compile")


def recompute(c: Context) -> Iterator[Diagnostic]:
    """train.reentrant, fsdp.act_ckpt_twice"""
    options = c.training.gradient_checkpointing_kwargs or {}
    if options.get("use_reentrant") is True:
        yield c.at(codes.TRAIN_REENTRANT(), "training.gradient_checkpointing_kwargs")
    unknown = [
        key
        for key in options
        if key not in (KEEP, "use_reentrant", "preserve_rng_state", "determinism_check", "debug")
    ]
    if unknown:
        yield c.problem(
            config_codes.CONFIG_UNKNOWN_KEY,
            "gradient_checkpointing_kwargs has no such option",
            "training.gradient_checkpointing_kwargs",
            found=", ".join(unknown),
            hint=f"use_reentrant, {KEEP}",
        )
    if KEEP in options:
        yield from _kept(c, options[KEEP])
    # Set twice, or given while it is off
    if options and not c.training.gradient_checkpointing:
        yield c.at(
            codes.TRAIN_RECOMPUTE_OFF(),
            "training.gradient_checkpointing_kwargs",
            "training.gradient_checkpointing",
        )
    fsdp = c.training.fsdp_config if isinstance(c.training.fsdp_config, dict) else {}
    inside = fsdp.get("activation_checkpointing", fsdp.get("fsdp_activation_checkpointing"))
    if (
        inside is True
        and c.training.gradient_checkpointing
        and c.given("training.gradient_checkpointing")
        and c.provenance["training.gradient_checkpointing"].layer != "foreign file"
    ):
        yield c.at(
            codes.FSDP_ACT_CKPT_TWICE(found="activation_checkpointing and gradient_checkpointing"),
            "training.gradient_checkpointing",
            "training.fsdp_config",
        )


def compile_options(c: Context) -> Iterator[Diagnostic]:
    """train.compile_off"""
    for name in ("torch_compile_backend", "torch_compile_mode"):
        if getattr(c.training, name) is not None and not c.training.torch_compile:
            yield c.at(codes.TRAIN_COMPILE_OFF(name=name), f"training.{name}", "training.torch_compile")


def router_scope(c: Context) -> Iterator[Diagnostic]:
    """train.router_scope"""
    config = c.config.model.config
    requested = (
        bool(config_coefficient(text_part(config))) if config else c.config.model.name_or_path is not None
    )
    idle = c.training.router_aux_loss_coef == 0 or (c.training.router_aux_loss_coef is None and not requested)
    if idle and c.given("training.router_aux_loss_scope"):
        yield c.at(
            codes.TRAIN_ROUTER_SCOPE(), "training.router_aux_loss_scope", "training.router_aux_loss_coef"
        )


def _without_head(targets: Sequence[str]) -> str:
    others = ", ".join(name for name in targets if name != "lm_head")
    layers = f"[{others}]" if others else "all-linear"
    return f"target_modules: {layers} (with modules_to_save: [lm_head] the head is trained in full)"


def adapters(c: Context) -> Iterator[Diagnostic]:
    """dpo.lm_head_adapter, peft.bits, peft.quant_bias, peft.pattern, peft.resize_quant"""
    lora = c.config.lora
    if lora is None:
        return
    targets, bits = lora.target_modules, lora.quantization_bit
    yield from c.each(
        (
            "lm_head" in targets,
            partial(codes.DPO_LM_HEAD_ADAPTER, hint=_without_head(targets)),
            ("lora.target_modules",),
        ),
        (len(targets) > 1 and any(map(is_pattern, targets)), codes.PEFT_PATTERN, ("lora.target_modules",)),
        (bits not in (None, 4), codes.PEFT_BITS, ("lora.quantization_bit",)),
        (bits and lora.bias != "none", codes.PEFT_QUANT_BIAS, ("lora.bias", "lora.quantization_bit")),
    )
    if bits and (c.config.model.add_tokens or c.config.model.add_special_tokens):
        yield c.at(
            codes.PEFT_RESIZE_QUANT(found="quantization_bit with added tokens"), "lora.quantization_bit"
        )


def added_tokens(c: Context) -> Iterator[Diagnostic]:
    """model.added_tokens"""
    seen = set[str]()
    for key in ("add_tokens", "add_special_tokens"):
        tokens = getattr(c.config.model, key)
        twice = [t for i, t in enumerate(tokens) if t in seen or t in tokens[:i]]
        wrong = "an empty text" if "" in tokens else f"{twice[0]!r} twice" if twice else ""
        if wrong:
            yield c.at(codes.MODEL_ADDED_TOKENS(found=wrong, key=key), f"model.{key}")
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
