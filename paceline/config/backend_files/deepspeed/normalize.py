"""Normalise a DeepSpeed JSON to 0.19.8: check types, translate old names, report all other keys.

DeepSpeed itself reads its top level with ``dict.get`` (a misspelt key is ignored) and most blocks strictly
(an old key is a crash).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

from pydantic_core import PydanticCustomError

from paceline.config import codes
from paceline.config.backend_files.deepspeed.key_verdicts import (
    AUTOTP_DECIDES,
    DROPPED,
    IGNORED,
    LOSS_SCALE,
    NOT_GRANTED,
    NOTES_BY_KEY,
    REFUSED,
    RENAMED,
    is_on,
)
from paceline.config.backend_files.layer import Document, Foreign, SettingsReader
from paceline.config.keys.nearest import MOST_UNKNOWN, nearest
from paceline.config.keys.valid_keys import same
from paceline.config.sections.types import misfit, to_bool, to_int, to_number, to_text
from paceline.config.source import holds_secret, shown
from paceline.core.diagnostics import Severity
from paceline.core.json_types import Json, JsonObject

_COMMENTS = ("_", "//", "#", "$")
_NEOX = frozenset(
    [
        "num-layers",
        "hidden-size",
        "num-attention-heads",
        "pipe-parallel-size",
        "model-parallel-size",
        "train-iters",
        "num_layers",
        "train_iters",
    ]
)


#: ZeRO's older switches → the blocks that took their place
_OFFLOADED = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "cpu_offload_params": "offload_param",
}
_OFFLOADS = ("zero_optimization.offload_param", "zero_optimization.offload_optimizer")
#: Keys of a block → a value's type, as ``deepspeed_values.convert`` reads it, or the keys of an inner block.
Keys: TypeAlias = "dict[str, str | Keys]"


@cache
def table() -> Keys:
    """Return every key of DeepSpeed 0.19.8, nested, with its value's type."""
    return json.loads(Path(__file__).with_name("keys.json").read_text(encoding="utf-8"))["keys"]


class Normaliser(SettingsReader):
    """Normalises one document into ``result``.

    ``strategy``: the strategy that a higher layer names, if any.
    """

    def __init__(self, document: Document, layer: Foreign, strategy: Json = None) -> None:
        super().__init__(document, layer)
        self.strategy = strategy
        self.result: JsonObject = {}
        self._unknown_keys = 0

    def run(self) -> JsonObject:
        """Return the normal form.

        Errors are added to ``layer.problems``; translated and dropped keys to ``layer.notes``.
        """
        data = self.document.data
        neox = [key for key in data if key in _NEOX]
        # One such key may be a slip; two are a GPT-NeoX file
        if len(neox) > 1:
            foreign = [key for key in data if key not in table() and not key.startswith(_COMMENTS)]
            what = (
                f"this is a GPT-NeoX file: {len(foreign)} keys of its own (model, data, schedule)"
                " are not DeepSpeed's and are ignored, as in DeepSpeed"
            )
            self.note(
                neox[0],
                f"{', '.join(foreign)}: {what}",
                "set them in model:, data: and training: of the YAML",
                Severity.WARNING,
            )
            data = {key: value for key, value in data.items() if key not in foreign}
        # Unknown keys are counted here; beyond the limit only their number is reported
        self.result = self._block(data, table(), "")
        if self._unknown_keys > MOST_UNKNOWN:
            self.problem(
                codes.ZERO_UNKNOWN_TOPLEVEL,
                f"{self._unknown_keys - MOST_UNKNOWN:,} more keys that DeepSpeed does not have",
                "",
                "",
                "is this a DeepSpeed config?",
            )
        zero = self.result.get("zero_optimization")
        if isinstance(zero, dict):
            self._zero(zero)
        return self.result

    def _block(self, block: JsonObject, spec: Keys, prefix: str) -> JsonObject:
        normal: JsonObject = {}
        # Per key: a comment, an old shape, refused, dropped, replaced, unknown, or known
        for key, value in block.items():
            path = f"{prefix}{key}"
            name = self._name(key, prefix.rstrip("."), path)
            canonical = f"{prefix}{name}"
            if key.startswith(_COMMENTS) or key.lower() in ("comment", "comments", "description"):
                self.note(path, "a comment", "")
            elif self._special(canonical, path, value, normal):
                continue
            elif canonical in REFUSED:
                self._refused(canonical, path, value)
            elif canonical in DROPPED:
                self.note(path, DROPPED[canonical])
            elif canonical in NOT_GRANTED:
                self.note(
                    path, NOT_GRANTED[canonical] if is_on(value) else "switched off", "", Severity.WARNING
                )
            elif name not in spec:
                self._unknown(key, path, spec)
            elif value is None:
                continue
            else:
                self._known(name, path, value, spec[name], normal)
        return normal

    def _name(self, key: str, block: str, path: str) -> str:
        new = RENAMED.get(block, {}).get(key)
        if new is None:
            return key
        self.note(path, f"{key} is now called {new}", new)
        return new

    def _known(self, name: str, path: str, value: Json, spec: str | Keys, normal: JsonObject) -> None:
        # Check the type and add the value
        if name in normal and not same(normal[name], value):
            self.problem(
                codes.CONFIG_CONFLICT,
                f"{path} is given twice, by an old and by the new name",
                path,
                shown(name, value),
                "one of the two",
            )
        elif value == "auto":
            normal[name] = "auto"
        elif isinstance(spec, dict):
            inner = {"enabled": value} if isinstance(value, bool) and "enabled" in spec else value
            if not isinstance(inner, dict):
                self.problem(
                    codes.CONFIG_TYPE,
                    f"{path} must be a mapping",
                    path,
                    shown(name, value),
                    f'{{"{next(iter(spec))}": …}}',
                )
                return
            normal[name] = self._block(inner, spec, f"{path}.")
        else:
            if isinstance(value, list) and spec.startswith(("int", "bool", "number")):
                self.problem(
                    codes.ZERO_TUNING_SPACE,
                    f"{path} is a list: a tuning space for DeepSpeed's autotuner, not the config of one run",
                    path,
                    shown(name, value),
                    f"use one of {shown(name, value)}",
                )
                return
            try:
                normal[name] = convert(spec, value)
            except PydanticCustomError as exc:
                self.problem(
                    codes.CONFIG_TYPE,
                    f"{path} {exc.message()}",
                    path,
                    shown(name, value),
                    'write "auto", or the value',
                )
                return
        # Notes on lossy features, and secrets
        taken = normal[name]
        on = any(item is True for item in taken.values()) if isinstance(taken, dict) else is_on(taken)
        if path in NOTES_BY_KEY and on:
            self.note(path, NOTES_BY_KEY[path])
        if isinstance(taken, str) and taken != "auto" and holds_secret(name, taken):
            self.problem(
                codes.SEC_SECRET_ON_CLI,
                f"'{path}' contains a secret in plain text; it would appear in logs and saved configs",
                path,
                "*** (not shown)",
                "remove it, and set the tool's own variable in the environment",
            )

    def _special(self, canonical: str, path: str, value: Json, normal: JsonObject) -> bool:
        """Handle an old spelling that changes place or shape; return whether it was one."""
        block, _, name = canonical.rpartition(".")
        if canonical == "zero_optimization" and isinstance(value, bool):
            stage = f'{{"stage": {int(value)}}}'
            normal["zero_optimization"] = {"stage": int(value)}
            self.note(path, f"zero_optimization: {shown('', value)} means stage {int(value)}", stage)
        elif block == "bf16" and name in LOSS_SCALE:
            self.note(
                path,
                "bf16 has float32's range and needs no loss scaling; DeepSpeed 0.19 refuses the key",
                "remove it",
            )
        elif canonical in ("fp16.fp16", "bf16.bf16"):
            self.note(path, "this is GPT-NeoX's spelling; `enabled` is used", '"enabled"')
            if is_on(value):
                normal.setdefault("enabled", True)
        elif canonical in ("fp16.opt_level", "fp16.fp16_scale_tolerance", "fp16.loss_scaling"):
            self.note(
                path, "DeepSpeed's fp16 block has no such key; it never had an effect there", "remove it"
            )
        elif block == "zero_optimization" and name in _OFFLOADED:
            self._offload(_OFFLOADED[name], path, value, normal)
        elif canonical == "zero_optimization.cpu_offload_use_pin_memory":
            self.note(
                path,
                "read as pin_memory of offload_optimizer and offload_param",
                'set "pin_memory" inside these blocks',
            )
            normal["_pin"] = value
        elif canonical in _OFFLOADS and isinstance(value, bool):
            self._offload(name, path, value, normal)
        elif canonical == "tensor_parallel" and isinstance(value, dict):
            self._tensor_parallel(path, value, normal)
        else:
            return False
        return True

    def _offload(self, name: str, path: str, value: Json, normal: JsonObject) -> None:
        on = is_on(value)
        self.note(
            path,
            f"read as {name}: device {'cpu' if on else 'none'}",
            f'"{name}": {{"device": "{"cpu" if on else "none"}"}}',
        )
        if on:
            normal.setdefault(name, {"device": "cpu"})

    def _tensor_parallel(self, path: str, value: JsonObject, normal: JsonObject) -> None:
        """Convert ``{"enabled": true, "tp_size": 2}`` and ``{"tp": {"tp_size": 2}}`` to ``autotp_size``.

        DeepSpeed refuses the first and ignores the second.
        """
        # Collect the sizes of all spellings
        inner = dict(value)
        enabled = inner.pop("enabled", True)
        sizes = {"tp_size": inner.pop("tp_size", None)}
        tp = inner.get("tp", inner.get("tensor_parallel"))
        if isinstance(tp, dict) and "autotp_size" not in inner:
            sizes["tp.tp_size"] = tp.get("tp_size")
        if not is_on(enabled):
            self.note(path, "switched off")
            return
        # Drop keys that AutoTP decides, then agree on one size
        for key in [key for key in inner if key.startswith(AUTOTP_DECIDES)]:
            del inner[key]
            self.note(
                f"{path}.{key}",
                "DeepSpeed has no such key: AutoTP chooses which matrices it shards and how, and"
                " its groups are consecutive ranks",
                "remove it",
            )
        for written, size in sizes.items():
            if size is not None and inner.setdefault("autotp_size", size) != size:
                self.problem(
                    codes.CONFIG_CONFLICT,
                    "tensor_parallel sets two different sizes",
                    f"{path}.{written}",
                    f"{written}: {size}, autotp_size: {inner['autotp_size']}",
                    "keep autotp_size alone",
                )
            elif size is not None and "autotp_size" not in value:
                self.note(
                    f"{path}.{written}",
                    f"read as autotp_size: {size}; DeepSpeed itself does not shard with this spelling",
                    f'"autotp_size": {size}',
                )
        spec = table()["tensor_parallel"]
        assert not isinstance(spec, str)
        normal["tensor_parallel"] = self._block(inner, spec, f"{path}.")

    def _zero(self, zero: JsonObject) -> None:
        if zero.get("stage") == "auto":
            del zero["stage"]
            # A strategy zero1 to zero3 names the stage itself
            if not str(self.strategy).startswith("zero"):
                zero["stage"] = 2
                self.note(
                    "zero_optimization.stage",
                    '"auto" means 2, as in accelerate, if no strategy sets it',
                    '"stage": 2',
                )
        # cpu_offload_use_pin_memory, which older files have beside the blocks
        pin = zero.pop("_pin", None)
        for name in ("offload_param", "offload_optimizer"):
            block = zero.get(name)
            if not isinstance(block, dict):
                continue
            if block.get("device") == "auto":
                block["device"] = "none"
                self.note(
                    f"zero_optimization.{name}.device",
                    '"auto" means none, as in accelerate',
                    'set "device": "cpu" to offload',
                )
            if pin is not None:
                block.setdefault("pin_memory", is_on(pin))
            if block.get("device") == "nvme" and block.get("nvme_path") in (None, "auto", ""):
                self.problem(
                    codes.ZERO_NVME_PATH,
                    f"{name} to nvme needs a folder",
                    f"zero_optimization.{name}.device",
                    "nvme without nvme_path",
                    'set "nvme_path": "/a/folder/on/the/disk"',
                )

    def _refused(self, canonical: str, path: str, value: Json) -> None:
        reason, remedy = REFUSED[canonical]
        if is_on(value):
            self.problem(codes.ZERO_NOT_BUILT, f"{path}: {reason}", path, path, remedy)
        else:
            self.note(path, "switched off")

    def _unknown(self, key: str, path: str, spec: Keys) -> None:
        self._unknown_keys += 1
        if self._unknown_keys > MOST_UNKNOWN:
            return
        near = nearest(key, sorted(spec))
        remedy = f"did you mean '{near[0]}'?" if near else "remove it"
        if path != key:
            block = path.rpartition(".")[0]
            self.problem(codes.ZERO_UNKNOWN_KEY, f"DeepSpeed's {block} has no key '{key}'", path, key, remedy)
            return
        inside = next(
            (name for name, block in spec.items() if isinstance(block, dict) and key in block), None
        )
        if inside == "zero_optimization" and key != "stage":
            # Only ZeRO's stage changes the setup; its other keys affect memory and speed.
            self.note(
                path,
                "DeepSpeed reads this key inside zero_optimization only; at the top level it has no effect",
                f'"zero_optimization": {{"{key}": …}}',
                Severity.WARNING,
            )
        elif key not in IGNORED and (inside or near):
            remedy = f"did you mean '{near[0]}'?" if near and not inside else f'put it inside "{inside}"'
            self.problem(
                codes.ZERO_UNKNOWN_TOPLEVEL,
                f"DeepSpeed has no key '{key}' and would ignore it silently",
                path,
                key,
                remedy,
            )
        else:
            self.note(
                path, "DeepSpeed has no such key and ignores it", "you can remove the line", Severity.WARNING
            )

    def note(self, path: str, message: str, remedy: str = "", severity: Severity = Severity.NOTE) -> None:
        """Report a key that is translated or dropped, by its path."""
        super().note(path, f"{path}: {message}", remedy, severity)


def convert(spec: str, value: Json) -> Json:
    """Convert ``value`` to the type of ``spec`` (``int 0..3``, ``bool``, ``none|cpu|nvme``).

    Raises PydanticCustomError if it does not fit.
    """
    kind, _, limits = spec.partition(" ")
    if kind in _KINDS:
        return _KINDS[kind](value)
    if kind in ("mapping", "list"):
        if isinstance(value, {"mapping": dict, "list": list}[kind]):
            return value
        raise misfit(f"must be a {kind}")
    if kind not in ("int", "number"):
        if (word := str(value).lower()) in kind.split("|"):
            return word
        raise misfit(f"must be one of {', '.join(kind.split('|'))}")
    number = (
        to_int(value) if kind == "int" else value if isinstance(value, (int, float)) else to_number(value)
    )
    low, _, high = limits.partition("..")
    if low and number < float(low):
        raise misfit(f"must be at least {low}")
    if high and number > float(high):
        raise misfit(f"must be at most {high}")
    return number


_KINDS: dict[str, Callable[[Json], Json]] = {"any": lambda value: value, "bool": to_bool, "text": to_text}
