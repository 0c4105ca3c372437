"""Facts about each family of models (``model_type``): one record that all other code reads. No torch.

The records are ``data/families.json``. ``tests/unit/models/family_sweep.py`` measures the first fields,
``tests/unit/simulate/saved_activations.py`` ``saves``; the others are written by hand and held by tests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from paceline.core.json_types import Json, JsonObject
from paceline.plan.plan_json import shipped_table

# Names of each size across Transformers' families.
SIZE_NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "head_dim": ("head_dim",),
}

#: The parts of a model with a tower beside its text.
VISION, PROJECTOR = "vision", "projector"


@dataclass(frozen=True)
class Family:
    """A family; the defaults are those of a Llama.

    Measured:
        refused: why it is not supported (empty if it is).
        rows: ``packed`` or ``padded``.
        sizes, defaults: defaults of its config class (Transformers 5.23).
        counted: its parameters are counted exactly by the formulas of ``parameter_list``.
        buffers: its state includes buffers.
        carries: its layers pass a state from token to token outside of attention.
        selects: parts select an attention's keys, and no gradient reaches them.
        parts: its folder's files hold every tensor, as it is or to be joined
            (``models.loading.sharded_loading``), so each rank can read its own part.
        saves: its layers' saved activations relative to a Llama's of the same sizes (0: unknown).

    Config:
        refused_where: a key of its config that is not supported where it is set, and why.
        grouped: heads may share keys and values.
        multi_query: one head of keys and values, unless its config says otherwise.
        attention_bias, sinks, softcap, dropout: defaults of its attention if the config does not set them.
        alibi_twice_in_eager: Transformers' eager attention adds its ALiBi bias twice.
        balance_loss: Transformers computes a balance loss of its experts, with this coefficient by default.
        shared_gate: its shared expert has a gate.
        renames_experts: peft takes ``gate_proj``, ``up_proj`` and ``down_proj`` for names of experts, which
            they once were, so that no other layer of these names gets LoRA.

    Classes:
        autocast: a module has no low-precision form, so it trains under ``torch.autocast``.
        read_wide: a model built in 16 bits would round its buffers, so its files are read in fp32.
        conv1d: ``Conv1D`` in place of ``nn.Linear``: weights are [in, out], bitsandbytes quantizes none.
        gated: its MLP has a gate; parallel_residual: attention and MLP share one residual.
        fused_norms: Paceline's kernels compute its norms under tensor parallelism, adapters and experts too.
        linears_known: the sizes of its linear layers are known, to check files and count adapters'
        parameters.
        needs_trial: a start tries its class in a small model; for other families a test does.
        not_gguf: what is wrong with Transformers' reader of its GGUF files.

    Encoders and their classification class:
        encoder: every token sees its whole document, so it classifies texts and cannot generate.
        head: modules of that class after the trunk, in call order.
        token_types: its trunk reads which of two texts a token belongs to.
        padding_first: positions start after the padding token's id.

    Parallelism:
        tensor_plan: Transformers' tensor-parallel plan of it runs; tp_plan: ours, where it has none.
        autotp: DeepSpeed follows that plan, which shards by column and row only.
        stages: its layers run stage by stage (no position embeddings are added outside of them).
        experts_in_turn: it visits the chosen experts in turn, so ranks gather weights in different orders.

    Parameters (blocks of ``data/parameters.json``):
        frame: the model around its layers, and all of a layer where a block has this name.
        attention, mlp, experts, norms: the parts of a layer.
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
    refused_where: Mapping[str, str] = field(default_factory=dict)
    grouped: bool = True
    multi_query: bool = False
    attention_bias: bool = False
    sinks: bool = False
    softcap: bool = False
    dropout: bool = False
    alibi_twice_in_eager: bool = False
    balance_loss: float | None = None
    shared_gate: bool = False
    renames_experts: bool = False
    autocast: bool = False
    read_wide: bool = False
    conv1d: bool = False
    gated: bool = True
    parallel_residual: bool = False
    fused_norms: bool = False
    linears_known: bool = False
    needs_trial: bool = True
    not_gguf: str = ""
    encoder: bool = False
    head: tuple[str, ...] = ("score",)
    token_types: bool = False
    padding_first: bool = False
    tensor_plan: bool = True
    tp_plan: Mapping[str, str] = field(default_factory=dict)
    autotp: bool = True
    stages: bool = True
    experts_in_turn: bool = False
    frame: str = "llama"
    attention: tuple[str, ...] = ("attention",)
    mlp: tuple[str, ...] = ("mlp",)
    experts: tuple[str, ...] = ("router", "experts", "shared_experts")
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    @property
    def trained(self) -> bool:
        """Whether the family is supported."""
        return bool(self.rows)

    def in_head(self, name: str, *, beside_trunk: bool = False) -> bool:
        """Whether a parameter (or the module ``name``) is of the classification head; ``beside_trunk``:
        without modules that the trunk also has (BERT's pooler).
        """
        parts = (part for part in self.head if not (beside_trunk and "." in part))
        return f"{name}.".startswith(tuple(f"{part}." for part in parts))


@dataclass(frozen=True)
class Composite:
    """A model with a vision tower, whose language model is trained alone or with the whole.

    - ``text``: the type of the causal class that computes a text as this model does (empty: its
      text_config's)
    - ``tied``: whether its config class ties the head by default
    - ``values``: fixed behaviour of its class, as values of the causal class's config
    - ``tower``: modules (or parameters) that read images, by their paths in the trunk
    - ``projector``: those that bring the tower's features to the text; they may lie within the tower
    - ``pixels``: the form of its tower's inputs (``models.vision.tower``); empty: images cannot train,
      and ``no_images`` says why
    - ``merged_here``: its class casts features to its masters' dtype, so the embeddings are merged here
    - ``in_layers``: features of images enter several layers of the language model
    - ``reads_embedding``: its class reads rows of the embedding itself
    - ``both_ways``: layers where the tokens of an image see each other: ``all``, or those with ``windows`` if
      its ``use_bidirectional_attention`` is ``vision``; empty: none
    """

    text: str = ""
    tied: bool = False
    values: Mapping[str, Json] = field(default_factory=dict)
    tower: tuple[str, ...] = ("vision_tower",)
    projector: tuple[str, ...] = ("multi_modal_projector",)
    pixels: str = ""
    no_images: str = "nobody has tried its tower"
    merged_here: bool = False
    both_ways: str = ""
    reads_embedding: bool = False
    in_layers: bool = False

    @property
    def parts(self) -> Mapping[str, str]:
        """Return by path which part of the model a module is: ``vision`` or ``projector``; the longest path
        of a parameter decides (``in_part``).
        """
        return dict.fromkeys(self.tower, VISION) | dict.fromkeys(self.projector, PROJECTOR)


def in_part(name: str, paths: Collection[str]) -> str:
    """Return the longest of ``paths`` (in the trunk) that the parameter or module ``name`` is in; else "".

    ``name`` may begin with the trunk's own name, and with peft's prefix.
    """
    path = name.removeprefix("base_model.model.").removeprefix("model.")
    return max((p for p in paths if f"{path}.".startswith(f"{p}.")), key=len, default="")


@dataclass(frozen=True)
class ImageFamily:
    """How the models of some types turn a picture into tokens and pixels.

    - ``types``: their model types
    - ``processor``: its image processor, ``module:class`` in ``transformers.models``; ``pil``: Pillow alone
      is enough for it (else torchvision)
    - ``layout``: which tokens stand for a picture (a name of ``plan.images.layouts``)
    - ``tokens``: by part of that layout the tokenizer's attribute that names it, and its usual text
    - ``mark``: the part that a chat template writes for a picture; ``written``: the text for a template
      that takes no pictures, with ``{mark}``
    - ``settings``, ``processor_settings``: defaults of the image processor and of the whole processor;
      ``forced``: what the whole processor sets at each call; ``beside``: settings that the model's config
      has, too; ``options``: further ones that may be set
    - ``inputs``: what the tower reads; ``joined``: the axis along which pictures are joined, where not 0
    - ``alone``: a row with several pictures cuts none into tiles
    """

    types: tuple[str, ...]
    processor: str
    layout: str
    tokens: Mapping[str, tuple[str, ...]]
    inputs: tuple[str, ...]
    pil: bool = True
    mark: str = "image"
    written: str = "{mark}"
    settings: Mapping[str, Json] = field(default_factory=dict)
    processor_settings: Mapping[str, Json] = field(default_factory=dict)
    forced: Mapping[str, Json] = field(default_factory=dict)
    beside: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    joined: int = 0
    alone: bool = False


@dataclass(frozen=True)
class _FamilyTable:
    """``transformers``: the version that was tested; ``usual``: types that a message names first;
    ``families``: causal language models; ``encoders``: models that train as classifiers.
    """

    transformers: str
    usual: tuple[str, ...]
    composites: Mapping[str, Composite]
    images: tuple[ImageFamily, ...]
    encoders: Mapping[str, Family]
    families: Mapping[str, Family]


_LLAMA = Family()  # a search asks thousands of times
_table = cache(partial(shipped_table, "families", _FamilyTable))


def families() -> Mapping[str, Family]:
    """Return the families of causal language models by model type."""
    return _table().families


def encoders() -> Mapping[str, Family]:
    """Return the encoders by model type; as causal language models they are refused."""
    return _table().encoders


def family_of(kind: Json) -> Family:
    """Return the record of a model type; for an unknown one, a Llama's."""
    return encoders().get(str(kind)) or families().get(str(kind), _LLAMA)


def composites() -> Mapping[str, Composite]:
    """Return, by model type, the models of which only the language model is trained."""
    return _table().composites


def image_family(kind: str) -> ImageFamily | None:
    """Return how models of this type see pictures; None if they see none, or nobody knows how."""
    return next((family for family in _table().images if kind in family.types), None)


def verdicts_of() -> str:
    """Return the version of Transformers that was tested."""
    return _table().transformers


def usual() -> tuple[str, ...]:
    """Return the model types that a message names first."""
    return _table().usual


def supported() -> tuple[str, ...]:
    """Return the supported types of causal language models."""
    return tuple(sorted(kind for kind, family in families().items() if family.trained))


_BESIDE = (
    *("vision", "visual", "audio", "speech", "image", "mm_projector", "multi_modal_projector"),
    *("multimodal_projector", "embed_vision", "connector", "mtp"),
)


def parts_of(kind: Json) -> Mapping[str, str]:
    """Return ``Composite.parts`` of a model type; empty for a language model's."""
    composite = composites().get(str(kind))
    return {} if composite is None else composite.parts


def composite_of(config: Mapping[str, Json]) -> Composite | None:
    """Return the composite record of a ``config.json`` of which only the language model is trained; else
    None."""
    inner = config.get("text_config")
    composite = composites().get(str(config.get("model_type")))
    flat = (
        composite is not None and bool(composite.text) and "vision_config" in config
    )  # as Qwen2-VL's was released
    return composite if flat or (isinstance(inner, Mapping) and inner) else None


IN_ALL, IN_WINDOWS = "all", "windows"  # of ``Composite.both_ways``
OF_IMAGES = "vision"  # a value of ``use_bidirectional_attention``: texts alone are causal


def both_ways(config: Mapping[str, Json]) -> str:
    """Return ``Composite.both_ways`` of a ``config.json``; empty if tokens of an image see earlier ones
    only."""
    composite = composites().get(str(config.get("model_type")), Composite())
    set_so = text_part(config).get("use_bidirectional_attention") == OF_IMAGES
    return composite.both_ways if composite.both_ways != IN_WINDOWS or set_so else ""


def text_part(config: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the language model's part of a ``config.json``, as the config of a causal class."""
    inner = config.get("text_config")
    part = inner if isinstance(inner, Mapping) and inner else config
    composite = composite_of(config)
    if composite is None:
        return part
    values: JsonObject = {
        **composite.values,
        "tie_word_embeddings": config.get("tie_word_embeddings", composite.tied),
    }
    return {**part, **values, **({"model_type": composite.text} if composite.text else {})}


def text_name(name: str) -> str:
    """Return the language model's own name of a layer (or of a pattern of layers). ``name`` is its name
    within the class with all parts, as in an adapter's files.
    """
    return re.sub(r"\blanguage_model\\?\.", "", name)


def beside_text(name: str, layers: int) -> bool:
    """Whether a tensor belongs, by its name, to a tower or a further prediction head and not to the language
    model's ``layers``.
    """
    parts = name.split(".")
    if any(word in part for part in parts[:-1] for word in _BESIDE):
        return True
    numbers = [int(b) for a, b in zip(parts, parts[1:], strict=False) if a == "layers" and b.isdigit()]
    return bool(numbers) and numbers[0] >= layers
