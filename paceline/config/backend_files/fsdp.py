"""FSDP settings of Transformers 5.23 and ``accelerate config`` (versions 1 and 2), in one normal form.

FSDP2 runs whichever version is requested. Options that FSDP2 does not have are reported. ``accelerate
to-fsdp2`` silently maps NO_SHARD and HYBRID_SHARD to full sharding; here they keep their meaning through a
two-dimensional device mesh.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping

from pydantic_core import PydanticCustomError

from paceline.config import codes
from paceline.config.backend_files.layer import Document, Foreign, SettingsReader
from paceline.config.keys.nearest import did_you_mean
from paceline.config.sections.types import misfit, to_bool, to_int, to_mapping, to_texts
from paceline.config.source import shown
from paceline.core.diagnostics import Severity
from paceline.core.json_types import Json, JsonObject, as_object

#: Numbers are Accelerate's ``fsdp_sharding_strategy`` 1 to 5.
SHARDINGS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_RESHARDS = {
    "full_shard": True,
    "hybrid_shard": True,
    "shard_grad_op": False,
    "hybrid_shard_zero2": False,
    "no_shard": False,
}
_OFFLOADABLE = ("full_shard", "shard_grad_op")
_PREFETCH = ("backward_pre", "backward_post", "none")
_STATE_DICTS = ("full_state_dict", "local_state_dict", "sharded_state_dict")
_WRAP = {
    "transformer_based_wrap": "transformer",
    "size_based_wrap": "size",
    "no_wrap": "none",
    "transformer": "transformer",
    "size": "size",
    "none": "none",
}
_RENAMED = {
    "fsdp_version": "version",
    "min_num_param": "min_num_params",
    "wrap_policy": "auto_wrap_policy",
    "backward_prefetch_policy": "backward_prefetch",
    "offload_params": "cpu_offload",
    "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap",
    "offload": "cpu_offload",
}
_NOT_OFFLOADED = "recomputed activations stay on the device; offloading them is not supported"
#: Notes on settings that are on
_MEANINGS = {
    "activation_cpu_offload": _NOT_OFFLOADED,
    "activation_checkpointing_offload": _NOT_OFFLOADED,
    "xla_fsdp_settings": "it would set torch_xla's wrapper (compute and buffer dtypes, flattening)",
    "xla_fsdp_v2": "it would shard with torch_xla's SPMD",
    "xla_fsdp_grad_ckpt": "it would recompute activations in the backward, inside each XLA FSDP unit",
    "xla": "it would shard with torch_xla's FSDP on TPUs; XLA devices are not supported",
}
_PRECISIONS = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "fp32": "no",
    "float32": "no",
}


def _one_of(choices: Collection[str], also: Mapping[str, str]) -> Callable[[Json], str]:
    def convert(value: Json) -> str:
        word = "none" if value in (None, False) else str(value).strip().lower()
        word = also.get(word, word)
        if word in choices:
            return word
        raise misfit(f"must be one of {', '.join(choices)}")

    return convert


def _word(value: Json) -> str:
    """Return a word in Paceline's spelling: `FULL SHARD` and `full-shard` are `full_shard`."""
    return "_".join(str(value).lower().replace("-", " ").split())


def _words(value: Json) -> list[str]:
    """Return the options of ``fsdp``; those of several words may be written with blanks or hyphens."""
    text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    parts = text.replace(",", " ").replace("-", " ").split()
    options: list[str] = []
    while parts:
        # The longest run of words that is one option: `hybrid shard zero2`
        ends = (
            n for n in range(len(parts), 0, -1) if "_".join(parts[:n]).lower() in (*SHARDINGS, "auto_wrap")
        )
        length = next(ends, 1)
        options.append("_".join(parts[:length]))
        del parts[:length]
    return options


def _wrap(value: Json) -> str:
    word = _WRAP.get("none" if value in (None, False) else _word(value))
    if word is None:
        raise misfit("must be one of TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP")
    return word


def _version(value: Json) -> int:
    number = to_int(value)
    if number not in (1, 2):
        raise misfit("must be 1 or 2")
    return number


def _count(value: Json) -> int:
    number = to_int(value)
    if number < 0:
        raise misfit("must be a number of parameters, 0 or more")
    return number


def sharding_of(value: Json) -> str | None:
    """Return the sharding named by a word or by Accelerate's number 1 to 5, or None."""
    if isinstance(value, bool):
        return None
    text = _word(value).removeprefix("_").removeprefix("shardingstrategy.")
    if len(text) == 1 and text.isdecimal() and 1 <= int(text) <= len(SHARDINGS):
        return SHARDINGS[int(text) - 1]
    return text if text in SHARDINGS else None


_CONVERT: dict[str, Callable[[Json], Json]] = {
    "version": _version,
    "auto_wrap_policy": _wrap,
    "transformer_layer_cls_to_wrap": lambda value: list(to_texts(value)),
    "min_num_params": _count,
    "backward_prefetch": _one_of(
        _PREFETCH, {"no_prefetch": "none", "1": "backward_pre", "2": "backward_post"}
    ),
    "state_dict_type": _one_of(
        _STATE_DICTS, {"1": "full_state_dict", "2": "local_state_dict", "3": "sharded_state_dict"}
    ),
    "xla_fsdp_settings": to_mapping,
    **dict.fromkeys(
        (
            "forward_prefetch",
            "cpu_offload",
            "cpu_ram_efficient_loading",
            "sync_module_states",
            "use_orig_params",
            "limit_all_gathers",
            "activation_checkpointing",
            "activation_cpu_offload",
            "activation_checkpointing_offload",
            "xla",
            "xla_fsdp_v2",
            "xla_fsdp_grad_ckpt",
        ),
        to_bool,
    ),
}
_SHARDING_KEYS = ("sharding_strategy", "reshard_after_forward")
_POLICY_KEYS = ("mixed_precision_policy", "ignored_modules")
KNOWN = frozenset([*_CONVERT, *_SHARDING_KEYS, *_POLICY_KEYS, *_RENAMED])
_DROPPED = ("activation_cpu_offload", "activation_checkpointing_offload")


def plain_name(key: str) -> str:
    """Return a key without its prefix, in the spelling of the normal form."""
    name = _RENAMED.get(key.lower(), key.lower()).removeprefix("fsdp_")
    return _RENAMED.get(name, name)


class FsdpReader(SettingsReader):
    """Reads one set of FSDP settings; ``sharding`` and ``options`` are the normal form."""

    def __init__(self, document: Document, layer: Foreign, replicas: bool = False) -> None:
        super().__init__(document, layer)
        self.replicas = replicas
        self.sharding: str | None = None
        self.options: JsonObject = {}
        self._words_place = document.place("")
        self._auto_wrap = False
        self._paths: dict[str, str] = {}

    def words(self, value: Json, origin: str) -> None:
        """Read ``fsdp: full_shard auto_wrap offload`` as a text, a list, or true."""
        self._words_place = origin
        # Options, and at most one sharding
        for word in ["full_shard"] if value is True else _words(value):
            name = "full_shard" if word.lower() == "true" else word.lower()
            if name == "auto_wrap":
                self._auto_wrap = True
            elif name == "offload":
                self.options["cpu_offload"] = True
            elif (sharding := sharding_of(name)) is not None:
                if self.sharding not in (None, sharding):
                    self.layer.problems.append(
                        codes.FSDP_VALUE(
                            "fsdp names two sharding strategies",
                            origin,
                            f"{self.sharding} and {word}",
                            "keep one of them",
                        )
                    )
                self.sharding = sharding
            else:
                choices = (*SHARDINGS, "auto_wrap", "offload")
                near = difflib.get_close_matches(name, choices, n=1)
                remedy = f"did you mean '{near[0]}'?" if near else f"one of {', '.join(choices)}"
                self.layer.problems.append(
                    codes.FSDP_VALUE(f"fsdp has no option '{word}'", origin, word, remedy)
                )
        if self.sharding is None and (self.options or self._auto_wrap):
            self.sharding = "full_shard"

    def settings(self, block: JsonObject, prefix: str = "") -> None:
        """Read the keys of an ``fsdp_config``; ``prefix`` is their path inside the document."""
        for key, value in block.items():
            path, name = f"{prefix}{key}", plain_name(key)
            if key.startswith(("_", "//", "#")) or key == "comment":
                continue
            written = key.lower().removeprefix("fsdp_")
            if written in _RENAMED or (key.lower() in _RENAMED and written != name):
                self.layer.notes.append(
                    codes.CONFIG_TRANSLATED(
                        f"{key} is read as {name}: {shown(name, value)}",
                        self.document.place(path),
                        key,
                        name,
                        Severity.NOTE,
                    )
                )
            if name not in KNOWN:
                remedy = did_you_mean(name, sorted(KNOWN))
                self.problem(codes.FSDP_UNKNOWN_KEY, f"FSDP has no setting '{key}'", path, key, remedy)
            elif value is not None:
                special = {
                    "sharding_strategy": self._sharding,
                    "reshard_after_forward": self._sharding,
                    "mixed_precision_policy": self._precision,
                    "ignored_modules": self._ignored_modules,
                }
                special.get(name, self._plain)(name, value, path)

    def _plain(self, name: str, value: Json, path: str) -> None:
        try:
            setting = _CONVERT[name](value)
        except PydanticCustomError as exc:
            self.problem(
                codes.FSDP_VALUE,
                f"{path} {exc.message()}",
                path,
                shown(name, value),
                f"{path.rpartition('.')[2]}: give a valid value, or remove it",
            )
            return
        self._paths[name] = path
        if self.options.get(name, setting) != setting:
            self.note(
                path,
                f"{path} {shown(name, setting)} applies, not the value in training.fsdp"
                f" ({shown(name, self.options[name])})",
            )
        if name == "activation_checkpointing":
            self.set_entry("training.gradient_checkpointing", setting, path)
        if setting not in (False, {}) and name in _MEANINGS:
            self.note(path, _MEANINGS[name])
        if name not in _DROPPED:
            self.options[name] = setting

    def _sharding(self, name: str, value: Json, path: str) -> None:
        word = sharding_of(value)
        # reshard_after_forward as a boolean: ZeRO-3 or ZeRO-2 style, hybrid if the mesh has replicas
        if word is None:
            try:
                flag = to_bool(value) if name == "reshard_after_forward" else None
            except PydanticCustomError:
                flag = None
            if flag is None:
                words = ", ".join(word.upper() for word in SHARDINGS)
                self.problem(
                    codes.FSDP_VALUE,
                    f"{path} is not a sharding strategy",
                    path,
                    shown(name, value),
                    f"one of {words}{', true or false' if name == 'reshard_after_forward' else ''}",
                )
                return
            hybrid = self.replicas or (self.sharding or "").startswith("hybrid")
            grouped = ("hybrid_shard", "hybrid_shard_zero2") if hybrid else ("full_shard", "shard_grad_op")
            word = self.sharding if self.sharding == "no_shard" and not flag else grouped[not flag]
        if self.sharding not in (None, word):
            self.note(
                path,
                f"the sharding strategy is {word}, from {path}; {self._words_place} sets {self.sharding}",
                "keep one of the two",
            )
        self.sharding = word

    def _ignored_modules(self, name: str, value: Json, path: str) -> None:
        if value not in ([], ""):
            self.problem(
                codes.FSDP_NOT_BUILT,
                "modules ignored by FSDP are not supported: every parameter is sharded",
                path,
                shown(name, value),
                "remove the line",
            )

    def _precision(self, name: str, value: Json, path: str) -> None:
        policy = value.get("param_dtype") if isinstance(value, dict) else value
        word = _PRECISIONS.get(str(policy).lower().removeprefix("torch."))
        if word is None:
            self.problem(
                codes.FSDP_VALUE,
                f"{path} is not a precision",
                path,
                shown(name, value),
                "use bf16, fp16 or fp32 (or set mixed_precision in the training section)",
            )
            return
        self.set_entry("training.mixed_precision", word, path)
        self.note(path, f"read as mixed_precision: {word}; gradients are reduced in float32")

    def finish(self, default_version: int | None) -> None:
        """Resolve settings that depend on several keys."""
        if default_version is not None:
            self.options.setdefault("version", default_version)
        self._wrapping()
        if (
            self.options.get("cpu_offload")
            and self.sharding is not None
            and self.sharding not in _OFFLOADABLE
        ):
            self.layer.problems.append(
                codes.FSDP_OFFLOAD(
                    f"offload works with {' or '.join(_OFFLOADABLE)}, not with {self.sharding}",
                    self._words_place,
                    f"{self.sharding} and offload",
                    "set fsdp: full_shard offload",
                )
            )
        if self.sharding is not None:
            # The sharding decides: a written value has been read as one
            self.options["reshard_after_forward"] = _RESHARDS[self.sharding]

    def _wrapping(self) -> None:
        """Determine the auto-wrap policy: the named one, else by size or class, which exclude each other."""
        by_size = bool(self.options.get("min_num_params"))
        by_class = bool(self.options.get("transformer_layer_cls_to_wrap"))
        # No policy named: size or class decides
        policy = self.options.get("auto_wrap_policy")
        if policy is None and by_size and by_class:
            self.problem(
                codes.FSDP_VALUE,
                "min_num_params and transformer_layer_cls_to_wrap are two ways to wrap the model,"
                " and exclude each other",
                self._paths["min_num_params"],
                "both",
                "keep one of the two, or set auto_wrap_policy: TRANSFORMER_BASED_WRAP or SIZE_BASED_WRAP",
            )
            return
        if policy is None and (by_size or self._auto_wrap):
            self.options["auto_wrap_policy"] = "size" if by_size else "transformer"
            return
        # Policy named: settings of the other policies have no effect
        unused = {
            "size": ["transformer_layer_cls_to_wrap"],
            "transformer": ["min_num_params"],
            "none": ["min_num_params", "transformer_layer_cls_to_wrap"],
        }
        for name in unused.get(str(policy or ""), []):
            if self.options.pop(name, None):
                path = self._paths[name]
                self.layer.notes.append(
                    self.document.note(
                        path,
                        f"{path} has no effect with auto_wrap_policy {policy}, as in accelerate",
                        "you can remove the line",
                    )
                )

    def read(self, words: Json, origin: str, default_version: int | None) -> None:
        """Read ``fsdp`` (``words``, set at ``origin``) and the document's settings.

        The document may hold both (``{"fsdp": "full_shard", "fsdp_config": {…}}``). ``default_version``: of
        a missing version key.
        """
        data, block, prefix = self.document.data, self.document.data, ""
        inner = data.get("fsdp_config")
        if isinstance(inner, dict) or "fsdp" in data:
            if words is None and data.get("fsdp"):
                words, origin = data["fsdp"], self.document.place("fsdp")
            for key in data:
                if key not in ("fsdp", "fsdp_config") and not key.startswith(("_", "//", "#")):
                    self.problem(
                        codes.FSDP_UNKNOWN_KEY,
                        f"a file of FSDP settings has no key '{key}' apart from fsdp and fsdp_config",
                        key,
                        key,
                        "remove it",
                    )
            if inner and not isinstance(inner, dict):
                self.problem(
                    codes.CONFIG_TYPE,
                    "fsdp_config must be a mapping",
                    "fsdp_config",
                    shown("fsdp_config", inner),
                    "fsdp_config: with keys below it",
                )
            block, prefix = as_object(inner), "fsdp_config."
        if words:
            self.words(words, origin)
        self.settings(block, prefix)
        self.finish(default_version)
