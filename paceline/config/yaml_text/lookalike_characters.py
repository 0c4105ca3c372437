"""Characters that look like ASCII but are not: full-width signs, curly quotes, Unicode spaces and others."""

from __future__ import annotations

import re
import unicodedata

from paceline.config.yaml_text.scalars import resolve_plain

_WIDE = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | {
    "。": ".",
    "、": ",",
    "“": '"',
    "”": '"',
    "„": '"',
    "‟": '"',
}
_SPACES = dict.fromkeys(
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "
)
_UNSEEN = dict.fromkeys("\u00ad\u200b\u200e\u200f\u2060\ufeff", "")
_JOINERS = dict.fromkeys("\u200c\u200d", "")  # valid in emoji and Persian, never in a key
_PROSE = dict.fromkeys("‐‑‒–—―−", "-") | {"‘": "'", "’": "'", "‚": "'"}  # valid in a text, not in a number
_PLAIN = str.maketrans({**_WIDE, **_SPACES, **_UNSEEN, **_JOINERS, **_PROSE})
_CERTAIN = frozenset((*_WIDE, *_SPACES, *_UNSEEN))
_IN_A_KEY = frozenset((*_CERTAIN, *_JOINERS, *_PROSE))
_KEY = re.compile(r"^(\s*(?:-\s+)?[A-Za-z_][\w.-]*\s*)：\s*(.*)$")
# YAML requires an ASCII space after the colon
_STUCK = re.compile(rf"^\s*(?:-\s+)?[A-Za-z_][\w.-]*:[{''.join(_SPACES)}]")
_QUOTED = re.compile(r"^[“”„‘’].*[“”„‘’]$", re.DOTALL)
_LOOSE = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|(?:^|\s)#.*$")


def plain(text: str) -> str:
    """Replace such characters by ASCII ones; add a space after a full-width colon that follows a key."""
    match = _KEY.match(text)
    return f"{match[1].translate(_PLAIN).rstrip()}: {plain(match[2])}" if match else text.translate(_PLAIN)


def in_key(key: str) -> str | None:
    """Describe the first character that cannot belong to a key; None if there is none."""
    return _named(next((c for c in key if c in _IN_A_KEY), None))


def in_value(text: str, is_plain: bool = True) -> str | None:
    """Describe a character of a value that must be a typing error; None where the text may mean it.

    ``is_plain``: the text is not quoted. Chinese text legitimately contains full-width signs. So a sign
    counts as an error in three cases only: the rest of the text is ASCII, the sign makes the text look like a
    key, or replacing it yields a number or ``true``.
    """
    if text.isascii():
        return None
    # Quoted text: only invisible characters and odd spaces in what looks like one word
    certain = next((c for c in text if c in _CERTAIN), None)
    if not is_plain:
        unseen = next((c for c in text if c in _UNSEEN or c in _SPACES), None)
        return _named(unseen) if unseen and " " not in text and "\n" not in text else None
    # Plain text that would be a key, a number, a boolean or a quoted text in ASCII
    if _KEY.match(text):
        return _named("：")
    if not isinstance(resolve_plain(plain(text).strip(" ,;.")), str):
        return _named(certain or next(c for c in text if not c.isascii()))
    if _QUOTED.match(text):
        return _named(text[0])
    unseen = next((c for c in text if c in _UNSEEN), None)
    if unseen or (certain and plain(text).isascii() and not any(c in _PROSE for c in text)):
        return _named(unseen or certain)
    return None


def key_lines(lines: list[str], first: int) -> list[int]:
    """Return the numbers (from 1) of consecutive lines with a full-width colon after a key, from ``first``
    on.
    """
    numbers = []
    for number in range(first, len(lines) + 1):
        if not _KEY.match(_LOOSE.sub("", lines[number - 1])):
            break
        numbers.append(number)
    return numbers


def near_line(lines: list[str], number: int) -> tuple[int, str] | None:
    """Return (line, described character) of what may have caused a syntax error at line ``number``.

    It looks at that line and at keys up to 20 lines above.
    """
    # A parser may stop far below the line at fault
    for looked_at in range(number, max(0, number - 20), -1):
        text = _LOOSE.sub("", lines[looked_at - 1]) if looked_at <= len(lines) else ""
        certain = next((c for c in text if c in _CERTAIN), None)
        indent = text[: len(text) - len(text.lstrip())]
        if certain and (
            looked_at == number
            or _KEY.match(text)
            or _STUCK.match(text)
            or any(c in _CERTAIN for c in indent)
        ):
            return looked_at, str(_named("：" if _KEY.match(text) else certain))
    return None


def _named(character: str | None) -> str | None:
    if character is None:
        return None
    name = unicodedata.name(character, "no name").lower().replace("fullwidth", "full-width")
    shown = f"'{character}', " if character.isprintable() and character not in _SPACES else ""
    return f"{shown}U+{ord(character):04X} ({name})"
