"""A foreign config while it is translated: its values, defaults and lines, and what has been decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from paceline.config.import_export.argument_tables import Defaults
from paceline.config.import_export.verdicts import Finding, Imported, KeyVerdict, Setting
from paceline.core.json_types import Json, JsonObject

_EMPTY: tuple[Json, ...] = (None, "", [], {})


class KeyReader:
    """The keys of one file. Translators take keys by ``value`` and decide each by one of the verbs.

    ``given``: the file's keys (inner ones dotted); ``lines``: where each stands; ``defaults``: the system's;
    ``engine``: deepspeed or fsdp, if a launcher sets it. ``facts``: what the job is, for the tables.
    """

    def __init__(
        self,
        system: str,
        file: str,
        given: JsonObject,
        lines: Mapping[str, int],
        defaults: Defaults,
        engine: str = "",
    ) -> None:
        self.result = Imported(system, file)
        self.given = given
        self._lines = lines
        self.defaults = defaults
        self._engine = engine
        self.facts: dict[str, Json] = {}

    def value(self, key: str) -> Json:
        """Return what the system would use: the file's value, or its default. ``facts`` hide keys."""
        if key in self.facts:
            return self.facts[key]
        value = self.given.get(key)
        return self.defaults.get(key) if value is None else value  # type: ignore[return-value]

    def text(self, key: str) -> str:
        """Return the value as a text, lower case; empty if there is none."""
        value = self.value(key)
        return "" if value is None else str(value).strip().lower()

    def on(self, key: str) -> bool:
        """Whether a switch is on."""
        return self.value(key) not in (*_EMPTY, False, 0) and self.text(key) not in (
            "false",
            "no",
            "off",
            "none",
        )

    def is_given(self, key: str) -> bool:
        """Whether the file sets the key to something."""
        return self.given.get(key) not in _EMPTY

    def engine(self) -> str:
        """Return the key that sets DeepSpeed or FSDP, which shard and make float32 masters; or empty."""
        own = (name for name in ("deepspeed", "fsdp", "fsdp_config") if self.is_given(name))
        return next(own, str(self.facts.get("engine") or self._engine))

    def decided(self, key: str) -> bool:
        """Whether the key already has its verdict."""
        return key in self.result.findings

    def open_keys(self) -> list[str]:
        """Return the file's keys without a verdict."""
        return [key for key in self.given if not self.decided(key)]

    def line(self, key: str) -> int:
        """Return the file's line of a key (of its nearest outer key); 0 for a key that is not given."""
        if key.partition(".")[0].partition("[")[0] not in self.given and key not in self.given:
            return 0
        while key and key not in self._lines:
            key = key.rpartition(".")[0]
        return self._lines.get(key, 1)

    def keep(self, key: str, path: str, value: Json, note: str = "") -> None:
        """The key acts the same here: as ``path: value``."""
        self.set(path, value, key, note)
        self._decide(key, KeyVerdict.MAPPED, note, path)

    def differs(self, key: str, path: str, value: Json, says: str) -> None:
        """The key is taken over with a difference that is said."""
        self.set(path, value, key, says)
        self._decide(key, KeyVerdict.DIFFERS, says, path)

    def mapped(self, keys: str | Iterable[str], to: Iterable[str], says: str = "") -> None:
        """The keys' meaning stands in settings that are made of several keys."""
        for key in [keys] if isinstance(keys, str) else keys:
            if key in self.given:
                self._decide(key, KeyVerdict.MAPPED, says, *to)

    def nothing(self, keys: str | Iterable[str], says: str) -> None:
        """The keys have no effect on the run, for this reason. Keys that the file lacks are left out."""
        for key in [keys] if isinstance(keys, str) else keys:
            if key in self.given:
                self._decide(key, KeyVerdict.NO_EFFECT, says)

    def lose(self, key: str, says: str) -> None:
        """The key's meaning cannot be kept, for this reason; also for a default (not in the file)."""
        self._decide(key, KeyVerdict.LOST, says)

    def set(self, path: str, value: Json, key: str = "", note: str = "") -> None:
        """Set a value of our config on behalf of ``key``."""
        self.result.settings[path] = Setting(value, key, self.line(key), note)

    def _decide(self, key: str, verdict: KeyVerdict, says: str, *to: str) -> None:
        value = self.given.get(key, self.defaults.get(key))
        found = Finding(key, value, self.line(key), verdict, to, says)  # type: ignore[arg-type]
        self.result.findings[key] = found

    def older(self, key: str, name: str) -> None:
        """Read an older name of a key as ``name``, which the file lacks."""
        self.given[name] = self.given[key]
        self._lines = {**self._lines, name: self.line(key)}
        self._decide(key, KeyVerdict.MAPPED, f"an older name of {name}")

    def older_done(self, key: str, name: str) -> None:
        """Give an older name the verdict of today's."""
        self.result.findings[key] = replace(self.result.findings.pop(name), key=key)
