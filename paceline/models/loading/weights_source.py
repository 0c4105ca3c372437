"""The Hugging Face model of a role, and where its weights come from: seed, folder or checkpoint."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from torch import nn

from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.models import codes
from paceline.models.heads.sequence_classification import (
    SCALAR_ROLES,
    TRUNK_ROLES,
    Attention,
    AutoClass,
    Classes,
    auto_class,
)
from paceline.models.loading.folder_tensors import FolderTensors, folder_tensors
from paceline.models.loading.loading_report import NOTHING, refusals, untied
from paceline.models.loading.materialize import (
    RestoredWeights,
    draw,
    empty_model,
    from_config,
    skeleton,
    unread,
)
from paceline.models.loading.model_source import (
    ModelSource,
    cannot_load,
    code_options,
    config_keys,
    load_hf_config,
    raw_config,
    weights_folder,
)
from paceline.models.loading.multimodal import load_text, whole_model
from paceline.models.loading.quantized_folder import load_dequantised, quantised_folder
from paceline.models.loading.sharded_loading import folder_slices, resize_embeddings, vocabulary_names
from paceline.models.role_module import POOLER
from paceline.models.vision.tower import unreached
from paceline.models.vision.whole_model import attention_of_parts, register_classifier
from paceline.plan.model.family import family_of, text_part
from paceline.plan.model.files.safetensors_headers import stored
from paceline.plan.model.quantized_weights import plain_config
from paceline.plan.model.supported import separated
from paceline.plan.plan import AdapterSpec
from paceline.protocols.model import BuildOptions, Slices
from paceline.protocols.roles import Role

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.protocols.model import HFModel

FROM_CHECKPOINT = "weights come from the checkpoint; the model's own files are not read"
READ_IN_PARTS = "each rank reads its own part of the files"
PACKED = "each layer is packed as it is read"


@dataclass(eq=False)
class WeightsSource:
    """Builds the Hugging Face model of a role; making one reads the config only.

    The fields are those of ``HFModelFactory``.

    - ``tensors``: the use of the folder's tensors, once known
    - ``rows``: the final number of embedding rows
    - ``built_whole``: why the model is not read in parts (empty: it is)
    """

    model: ModelSource
    role: Role
    vocab_size: int | None
    seed: int
    classes: Classes | None
    frozen: bool
    adapter: AdapterSpec | None
    restored: Collection[str]
    vision: bool = False

    def __post_init__(self) -> None:
        config = load_hf_config(self.model)
        self.tensors: FolderTensors | None = None
        self.built_whole = ""
        self.auto = auto_class(self.role, self.vision)
        if self.vision and self.role in SCALAR_ROLES:
            register_classifier(type(config))
        self._quantised = quantised_folder(self.model)
        # the language model alone, cut out of the whole
        self._whole = None if self.model.trust_remote_code or self.vision else whole_model(config)
        self.own_config = self.config()
        self.kind = _model_class(self.own_config, self.model, self.auto, self.role)
        self.rows = _rows(self.model, self.old_rows, self.vocab_size)

    def config(self, *, sized: bool = False) -> PreTrainedConfig:
        """Return a new config of the class; ``sized``: with the final number of embedding rows."""
        config = load_hf_config(self.model) if self._whole is None else copy.deepcopy(self._whole.text)
        if self.role in SCALAR_ROLES:
            config.num_labels = 1 if self.classes is None else len(self.classes.names)
        if sized:
            config.get_text_config().vocab_size = self.rows
        return config

    @property
    def old_rows(self) -> int:
        """The number of rows of the stored embedding, by the model's own config."""
        rows: int = self.own_config.get_text_config().vocab_size
        return rows

    @property
    def known_class(self) -> bool:
        """Whether the class is known without downloading code from the hub."""
        return self.kind is not nn.Module

    @property
    def takes_attention(self) -> bool:
        """Whether the class takes a registered attention function, or keeps documents apart otherwise."""
        apart = self.kind.__module__.startswith("transformers.models.") and separated(
            str(self.own_config.get_text_config().model_type)
        )
        return apart or bool(getattr(self.kind, "_supports_attention_backend", False))

    @property
    def packs(self) -> bool:
        """Whether layers are packed in 4 bits, each when it is read."""
        return self.adapter is not None and self.adapter.quantization is not None

    @cached_property
    def fresh(self) -> frozenset[str]:
        """Weights drawn from the seed where the folder has none: the score head that is trained."""
        return frozenset() if self.frozen else self._of_head

    @cached_property
    def _of_head(self) -> frozenset[str]:
        """The parameters of the head that replaces the language-model head; without a head, those of the
        trunk's untrained pooler.
        """
        family = family_of(self.own_config.model_type)
        if self.role in TRUNK_ROLES and family.encoder and self.known_class:
            names = (name for name, _ in self._skeleton().named_parameters())
            return frozenset(name for name in names if name.startswith(f"{POOLER}."))
        if self.role not in SCALAR_ROLES:
            return frozenset()
        if not family.encoder or not self.known_class:
            return frozenset(f"{name}.weight" for name in family.head)
        names = (name for name, _ in self._skeleton().named_parameters())
        return frozenset(n for n in names if n.startswith(tuple(f"{part}." for part in family.head)))

    def saved_config(self) -> JsonObject:
        """Return the ``config.json`` saved with the trained weights: the base model's own keys, with only
        what training changes.
        """
        scores = self.role in SCALAR_ROLES
        if self.model.name_or_path is None or (self._whole is not None and scores):
            # what differs from the defaults
            saved: JsonObject = json.loads(self.config(sized=True).to_json_string())
        else:
            saved = plain_config(raw_config(self.model))
            if self.rows != self.old_rows:
                inner = saved.get("text_config")
                (inner if isinstance(inner, dict) else saved)["vocab_size"] = self.rows
        if self.known_class and (self._whole is None or scores or self.role in TRUNK_ROLES):
            saved["architectures"] = [self.kind.__name__]
        if scores:
            alone: JsonObject = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
            saved |= alone if self.classes is None else self.classes.of_config
            saved.pop("num_labels", None)
        return saved

    def build(
        self, device: torch.device, options: BuildOptions, attention: Attention
    ) -> tuple[HFModel, Slices | None]:
        """Return the model with its weights: none (meta), from the seed, or from safetensors; and where
        parameters on meta can be read in parts.
        """
        if self.vision:
            attention = attention_of_parts(self.own_config, attention)
        meta = device.type == "meta"
        by_slices = (options.by_slices or self.packs) and self.model.config is None and self.known_class
        if meta or by_slices or (self.restored and self.known_class):
            hf = self._skeleton(attention, sized=True)
            self._account(hf)
            parts = self._parts(hf)
            self.built_whole, slices = (parts, None) if isinstance(parts, str) else ("", parts)
            if meta:
                return hf, slices
            if slices is not None and (by_slices or isinstance(slices, RestoredWeights)):
                name, revision = self.model.name_or_path, self.model.revision or "main"
                code = code_options(self.model)
                hf = empty_model(self.auto, self.config(sized=True), attention, code, name, revision)
                draw(hf, sorted(n for n in self.fresh if not slices.has(n)), self.seed)
                slices.grow(self.seed)
                return hf, slices
        if self.model.config is None:
            return self.from_files(attention), None
        with torch.random.fork_rng(devices=[]):  # on the CPU: the same on every rank, device and thread count
            torch.manual_seed(self.seed)
            return from_config(self.auto, self.config(sized=True), attention, code_options(self.model)), None

    def unreached(self) -> frozenset[str]:
        """Return the parameters of a whole model's tower that no image reaches."""
        return unreached(self._skeleton(sized=True)) if self.vision else frozenset()

    def account(self) -> FolderTensors | None:
        """Return the use of every tensor of the folder, without loading it. None without a folder, and for a
        class from the hub that is not built yet.
        """
        if self.tensors is None and self.known_class:
            self._account(self._skeleton())
        return self.tensors

    def notes(self, slices: Slices | None, in_parts: bool) -> dict[str, str]:
        """Return notes on the loading of the weights (``in_parts``: each rank reads its own), and on the
        folder's tensors and config.
        """
        why, found = self.built_whole, dict[str, str]()
        if isinstance(slices, RestoredWeights):
            found["start"] = FROM_CHECKPOINT
        elif self.tensors is not None and in_parts:
            found["start"] = f"rank 0 reads the whole model: {why}" if why else READ_IN_PARTS
        elif self.tensors is not None and self.packs:
            found["start"] = f"the whole model is read before it is packed: {why}" if why else PACKED
        if self.tensors is not None:
            kept = self.tensors.of_former_vocabulary(self.old_rows, self.rows)
            found["tensors"] = self.tensors.message + kept
            keys = text_part(plain_config(raw_config(self.model)))
            found["config"] = config_keys(keys, self.own_config)
        return found

    def from_files(self, attention: Attention) -> HFModel:
        """Return the model with the weights of its folder, read whole. Raises ConfigError."""
        name = self.model.name_or_path
        assert name is not None
        if self.known_class:
            self._account(self._skeleton(attention))
        with torch.random.fork_rng(devices=[]):  # missing parameters: equal on all ranks
            torch.manual_seed(self.seed)
            try:
                hf, loading_info = self._loaded(name, attention)
            except (OSError, ValueError, RuntimeError, SafetensorError) as error:
                raise ConfigError(cannot_load(name, error)) from error
        if not self.known_class:  # from the hub: known when it is loaded
            self._account(hf)
            if self.tensors is not None and (lost := self.tensors.carried):  # its exports are not re-read
                raise ConfigError(*refusals(replace(NOTHING, refused=lost), name))
        if self.tensors is not None and (apart := untied(hf, self.tensors.found, name)):
            raise ConfigError(*apart)
        # Refuse what the model would silently initialize, though every tensor was accounted for.
        if missing := sorted(set(loading_info.get("missing_keys", ())) - self.fresh):
            raise ConfigError(*refusals(replace(NOTHING, missing=tuple(missing)), name))
        # Make room for the tokenizer's new tokens.
        if self.rows != hf.get_input_embeddings().weight.shape[0]:
            for module in (hf.get_input_embeddings(), hf.get_output_embeddings()):
                if module is not None:
                    module.float()  # the new rows' mean is not rounded
            resize_embeddings(hf, self.rows, self.seed)
        hf.config.dtype = hf.config.get_text_config().dtype = torch.float32
        return hf

    def dtype(self, attention: Attention) -> torch.dtype:
        """Return the dtype for reading the weights: the stored one, if that changes no value of the model."""
        model = self.model
        if model.name_or_path is None or model.trust_remote_code:
            return torch.float32
        if self._quantised is None:
            kept = stored_dtype(model.name_or_path, model.revision, self._of_head)
        else:
            kept = torch.bfloat16 if self._quantised.plain_bfloat16 and not self._of_head else torch.float32
        wide = kept == torch.float32 or not buffers_keep_dtype(self.auto, self.config(), attention, kept)
        return torch.float32 if wide else kept

    def _skeleton(self, attention: Attention = None, *, sized: bool = False) -> HFModel:
        return skeleton(self.auto, self.config(sized=sized), attention, code_options(self.model))

    def _account(self, hf: HFModel) -> None:
        """Find the use of every tensor of the folder; ``hf`` may be on meta. Raises ConfigError."""
        if self.model.config is None and self.model.name_or_path is not None:
            self.tensors = folder_tensors(
                hf,
                self.model.name_or_path,
                self.model.revision,
                fresh=self.fresh,
                leaves_out=self.role in SCALAR_ROLES or self.role in TRUNK_ROLES,
                whole=self._whole,
                quantised=self._quantised,
            )

    def _parts(self, hf: HFModel) -> Slices | str:
        """Return the slices of each parameter of ``hf`` in the files or in a checkpoint, or why a parameter
        cannot be read in parts.
        """
        if self.adapter is None and (brought := unread(hf, self.restored)) is not None:
            return brought
        if self.tensors is None:
            return "there are no files"
        if self.adapter is not None and self.adapter.init_lora_weights:
            return f"{self.adapter.init_lora_weights} decomposes whole weights"
        if self.adapter is not None and self.adapter.use_dora:
            return "DoRA measures the rows of whole weights"
        whole = None if self._whole is None else self._whole.skeleton
        growing = vocabulary_names(hf) if self.rows > self.old_rows else ()
        return folder_slices(hf, self.tensors, self.fresh, growing, whole, self._quantised)

    def _loaded(self, name: str, attention: Attention) -> tuple[HFModel, Mapping[str, Collection[str]]]:
        """Return the model of the folder ``name`` and the keys that Transformers missed."""
        revision, dtype = self.model.revision or "main", self.dtype(attention)
        if self._whole is not None:
            made = self._skeleton(attention)
            return load_text(self._whole, made, name, revision, dtype, attention, self._quantised)
        if self._quantised is not None:
            assert self.tensors is not None
            used = self.tensors.used
            return load_dequantised(
                self.kind, self.config(), self._quantised, used, name, revision, dtype, attention
            )
        return self.auto.from_pretrained(
            name,
            config=self.config(),
            revision=revision,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            output_loading_info=True,
            **code_options(self.model),
        )


def stored_dtype(name: str, revision: str | None, needed: frozenset[str] = frozenset()) -> torch.dtype:
    """Return bf16 or fp16 if every tensor of the folder (or of the hub's ``name``) is stored so, else fp32.

    Fp32 also if ``needed`` tensors are missing, since these would be initialised in the returned dtype.
    """
    try:
        kind, names = stored(weights_folder(name, revision))
    except (OSError, ValueError):  # the load itself says what is wrong
        return torch.float32
    kept: torch.dtype = getattr(torch, kind)
    return kept if needed <= names else torch.float32


def buffers_keep_dtype(
    auto: AutoClass, config: PreTrainedConfig, attention: Attention, dtype: torch.dtype
) -> bool:
    """Return whether the model built in ``dtype`` has the same dtypes of buffers as one built in fp32.
    Gemma's scale of embeddings, for example, would be rounded.
    """
    code = {"trust_remote_code": False}
    wide, narrow = (skeleton(auto, config, attention, code, kept) for kept in (torch.float32, dtype))
    return _buffers(wide) == _buffers(narrow)


def _buffers(model: nn.Module) -> dict[str, torch.dtype]:
    plain = {
        f"{prefix}.{name}": value.dtype
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }
    return plain | {name: buffer.dtype for name, buffer in model.named_buffers()}


def _rows(model: ModelSource, have: int, need: int | None) -> int:
    """Return the number of embedding rows: what the tokenizer needs, padded to the multiple, but never fewer
    than the model has.
    """
    if need is not None and model.config is not None and "vocab_size" not in model.config:
        have = 0  # a drawn model without a size of its own takes the tokenizer's
    if need is None or need <= have:
        return have
    if model.resize_embeddings == "never":
        raise ConfigError(
            codes.MODELS_VOCAB_TOO_LARGE("model.resize_embeddings", "never", need=need, have=have)
        )
    multiple = max(1, model.embedding_multiple)
    return -(-need // multiple) * multiple


def _model_class(
    config: PreTrainedConfig, model: ModelSource, auto: AutoClass, role: Role
) -> type[nn.Module]:
    # Which class Transformers will build decides whether attention can be packed.
    if model.trust_remote_code and getattr(config, "auto_map", None):
        return nn.Module  # a class from the hub: nothing is known of its attention
    try:
        kind = auto._model_mapping[type(config)]
    except KeyError as error:
        if role in SCALAR_ROLES:
            raise ConfigError(
                codes.MODELS_NO_SCALAR_HEAD(
                    "this model type has no class for sequence classification",
                    "model",
                    str(config.model_type),
                    "use a decoder of another family: llama, qwen2, qwen3, mistral, gemma2, gpt2, …",
                )
            ) from error
        raise ConfigError(codes.MODELS_NOT_CAUSAL("model", str(config.model_type))) from error
    return kind[0] if isinstance(kind, tuple) else kind
