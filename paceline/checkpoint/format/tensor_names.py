"""Names of tensors in shard files, ``role|kind|plain name``, and the offsets of blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

_SAFE = "._-+ /:@[](),="  # everything else is percent-encoded, '|' and '%' included


@dataclass(frozen=True)
class TensorName:
    """The key of a tensor: ``kind`` is ``param``, ``buffer`` or the name of an optimizer state."""

    role: str
    kind: str
    name: str

    def encode(self) -> str:
        return "|".join(quote(part, safe=_SAFE) for part in (self.role, self.kind, self.name))

    @staticmethod
    def decode(text: str) -> TensorName:
        """Parse an encoded name. Raises ValueError for a text that ``encode`` does not produce."""
        parts = text.split("|")
        if len(parts) != 3:
            raise ValueError(f"{text!r} does not have the form role|kind|name")
        name = TensorName(*(unquote(part, errors="strict") for part in parts))
        if name.encode() != text:
            raise ValueError(f"{text!r} is not encoded as written")
        return name


def encode_place(global_shape: tuple[int, ...], offsets: tuple[int, ...]) -> str:
    """Return the metadata value of a block that is not the full tensor."""
    return json.dumps({"global_shape": global_shape, "offsets": offsets}, separators=(",", ":"))


def decode_place(
    encoded: str, metadata: Mapping[str, str], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (global shape, offsets) of a block of ``shape``; without metadata it is the full tensor.

    Raises ValueError if the block does not fit.
    """
    text = metadata.get(encoded)
    if text is None:
        return shape, (0,) * len(shape)
    data = json.loads(text)
    if not isinstance(data, dict) or set(data) != {"global_shape", "offsets"}:
        raise ValueError(f"the entry of {encoded!r} is {text[:200]!r}")
    # Validate: shapes of the block's rank, and a block inside the tensor.
    whole, offsets = data["global_shape"], data["offsets"]
    for numbers in (whole, offsets):
        if (
            not isinstance(numbers, list)
            or len(numbers) != len(shape)
            or not all(type(n) is int and 0 <= n < 1 << 53 for n in numbers)
        ):
            raise ValueError(f"the entry of {encoded!r} is {text[:200]!r}")
    if any(o + s > w for o, s, w in zip(offsets, shape, whole, strict=True)):
        raise ValueError(
            f"the block {encoded!r} at {offsets} of shape {list(shape)} exceeds the tensor of shape {whole}"
        )
    return tuple(whole), tuple(offsets)
