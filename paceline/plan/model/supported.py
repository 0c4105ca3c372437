"""Supported model families, and whether documents can be packed: results of the family sweep. No torch.

The sweep is ``tests/unit/models/family_sweep.py``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json
from paceline.plan import codes
from paceline.plan.codec import from_json
from paceline.plan.model.balance import has_router_loss
from paceline.plan.model.composite import composite_of, text_part

LIST = "docs/families.md"
_TOWERS = ("vision", "audio", "image", "speech", "visual", "vq", "vit", "perceiver", "qformer")
_STATELESS = "full_attention", "sliding_attention"  # layer types without state other than keys and values
_CHUNKED = "chunked_attention"  # may be set for any family


@dataclass(frozen=True)
class Family:
    """The sweep's result for one family. ``refused``: why it is not supported (empty: it is).

    ``rows``: ``packed`` or ``padded``; ``sizes``, ``defaults``: defaults of its config class; ``counted``:
    its parameters are counted exactly; ``buffers``: its state includes buffers; ``carries``: its layers pass
    a state from token to token outside of attention; ``selects``: parts select an attention's keys, and no
    gradient reaches them; ``parts``: its folder's files hold every tensor, as it is or to be joined
    (``models.slices``), so each rank can read its own part; ``saves``: what its layers keep for the
    backward over what a Llama of its sizes keeps (``tests/unit/simulate/saved_activations.py``; 0: unknown).
    """

    refused: str = ""
    rows: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    counted: bool = False
    buffers: bool = False
    carries: bool = False
    selects: bool = False
    parts: bool = False
    saves: float = 0.0

    @property
    def trained(self) -> bool:
        """Whether the family is supported."""
        return bool(self.rows)


@dataclass(frozen=True)
class _FamilyTable:
    """``transformers``: the version that was tested."""

    transformers: str
    families: Mapping[str, Family]


@cache
def _table() -> _FamilyTable:
    text = resources.files("paceline.plan").joinpath("data/families.json").read_text(encoding="utf-8")
    return from_json(_FamilyTable, json.loads(text))


def families() -> Mapping[str, Family]:
    """Return the families by model type."""
    return _table().families


def verdicts_of() -> str:
    """Return the version of Transformers that was tested."""
    return _table().transformers


def supported() -> tuple[str, ...]:
    """Return the supported model types."""
    return tuple(sorted(kind for kind, family in families().items() if family.trained))


def unsupported(
    config: Mapping[str, Json], where: str, own_code: bool = False, attention: str = "auto"
) -> list[Diagnostic]:
    """Return why a model with this ``config.json`` is not supported.

    A multimodal tower, a balance loss, an unsupported family, or Falcon's doubled ALiBi bias. ``own_code``:
    the model brings Python code; ``attention``: ``model.attn_implementation``.
    """
    composite = composite_of(config)
    found = [*([] if composite else _tower(config, where)), *_balance(config, where)]
    if attention == "eager" and config.get("model_type") == "falcon" and config.get("alibi"):
        found.append(codes.PLAN_ALIBI_TWICE("model.attn_implementation", "eager"))
    kind = text_part(config).get("model_type") if composite else config.get("model_type")
    if kind == "doge" and config.get("is_moe"):
        found.append(_family("doge", "its router mixes the tokens of a batch (is_moe: true)", where))
    if found or not isinstance(kind, str) or own_code:
        return found
    family = families().get(kind, Family())
    if not family.trained:
        found.append(_family(kind, family.refused, where))
    return found


def obstacle(config: Mapping[str, Json]) -> str | None:
    """Return why attention alone does not keep a row's documents apart; None if it does.

    Families that are not listed are taken to support packing.
    """
    kind = config.get("model_type")
    layers = config.get("layer_types") or ()
    other = sorted({str(x) for x in layers} - set(_STATELESS)) if isinstance(layers, (list, tuple)) else []
    if other and (_CHUNKED in other or not separated(str(kind))):
        return f"model_type {kind} has layers that carry state across tokens ({', '.join(other)})"
    if config.get("attention_chunk_size"):
        return f"model_type {kind} uses chunked attention"
    if config.get("is_causal") is False or config.get("use_bidirectional_attention"):
        return f"model_type {kind} is set to bidirectional attention"
    if families().get(str(kind), Family()).rows == "padded":
        return f"documents in a row of model_type {kind} would influence each other's losses"
    return None


def separated(kind: str) -> bool:
    """Whether layers of this type pass a state on, but not from one document of a row to the next one.

    So the sweep found for the library's own class with its own kinds of layers.
    """
    family = families().get(kind, Family())
    return family.carries and family.rows == "packed"


def _family(kind: str, why: str, where: str) -> Diagnostic:
    near = difflib.get_close_matches(kind, supported(), n=3, cutoff=0.6)
    known = list(dict.fromkeys([*near, "llama", "qwen3", "gemma3_text", "mistral", "phi3", "gpt2"]))[:7]
    what = f"models of type '{kind}' are not supported" + (f": {why}" if why else "")
    hint = f"supported: {', '.join(known)} and {len(supported()) - len(known)} more ({LIST})"
    return codes.PLAN_FAMILY(what, f"{where}.model_type", kind, hint)


def _tower(config: Mapping[str, Json], where: str) -> Iterator[Diagnostic]:
    inner = [
        key
        for key in config
        if key.endswith("_config") and key.removesuffix("_config").startswith(_TOWERS) and config[key]
    ]
    named = config.get("architectures")
    classes = (
        [n for n in named if isinstance(n, str) and n.endswith("ForConditionalGeneration")]
        if isinstance(named, list)
        else []
    )
    if inner or classes:
        yield codes.PLAN_TOWER(where, ", ".join([*inner, *classes]), hint=_no_tower())


def _no_tower() -> str:
    return (
        "use the text model of its family as a folder of its own (e.g. gemma3_text, qwen3);"
        f" {LIST} lists the supported types"
    )


def _balance(config: Mapping[str, Json], where: str) -> Iterator[Diagnostic]:
    """Refuse a balance loss of experts for a family that Transformers computes none for.

    A coefficient alone is set in most published configs, and is accepted.
    """
    inner = config.get("text_config")
    for place, one in (
        (where, config),
        *([(f"{where}.text_config", inner)] if isinstance(inner, Mapping) else []),
    ):
        kind = str(one.get("model_type"))
        requested = one.get("output_router_logits") is True and one.get("router_aux_loss_coef") != 0
        if requested and kind in families() and not has_router_loss(kind):
            yield codes.PLAN_BALANCE_LOSS(
                "a load-balancing loss of the experts is requested, but Transformers computes none for models"
                f" of type '{kind}'",
                f"{place}.output_router_logits",
                "true",
                "set output_router_logits: false",
            )
