"""Pictures of samples: small JPEG files of the run directory, sent inside the answer."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field

from paceline.core.files import open_run_file
from paceline.core.json_types import Json, JsonObject
from paceline.core.rundir import RunDir

MAX_PICTURE = 256 << 10  # bytes of one; a larger file is none of ours
MAX_ALL = 4 << 20  # bytes of all pictures of one answer
_NAME = re.compile(r"[0-9a-f]{32}")  # nothing else is ever opened
_JPEG = b"\xff\xd8\xff"
_MOST = 8  # of one row


@dataclass
class SamplePictures:
    """Reads pictures of ``run`` by name, up to MAX_ALL bytes in all."""

    run: RunDir
    _known: dict[str, str] = field(default_factory=dict)
    _bytes: int = 0

    def shown(self, row: JsonObject) -> JsonObject:
        """Return a row with addresses (``data:``) in place of the names of its pictures."""
        names = row.get("pictures")
        if not isinstance(names, list):
            return {key: value for key, value in row.items() if key != "pictures"}
        found: list[Json] = [address for name in names[:_MOST] if (address := self._address(name))]
        return {**row, "pictures": found, "pictures_left_out": len(names) - len(found)}

    def _address(self, name: Json) -> str:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return ""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> str:
        try:
            with open_run_file(self.run.picture(name)) as file:
                data = file.read(MAX_PICTURE + 1)
        except OSError:
            return ""  # deleted since; the row says that one is missing
        if len(data) > MAX_PICTURE or not data.startswith(_JPEG) or self._bytes + len(data) > MAX_ALL:
            return ""
        self._bytes += len(data)
        return "data:image/jpeg;base64," + base64.b64encode(data).decode()
