"""The Chinese twins of generated pages: ``python scripts/chinese_pages.py`` writes them, each text of the
English page looked up in ``scripts/chinese/PAGE.txt``; ``tests/unit/docs/test_chinese_pages.py`` holds them.
What codes mean stands in both languages in ``paceline/ROOM/codes.toml``.

A text is a heading, a paragraph, an item of a list, a cell of a table or a comment of a code block. In the
file a text and its translation are two lines, with an empty one after them. Code, numbers and names stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.diagnostics import all_codes
from paceline.core.plugins.tables import ALGORITHMS

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^(.*?\s)?# (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"\n(?=- |\d+\. |\|)|\n\n")
_CELLS = re.compile(r"(?<!\\)\|")
_CODE_OR_TARGET = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|</?\w+>")
#: A list of names that grows, and what stands for it in the files.
_NAMES, _THEIR = ", ".join(ALGORITHMS.names()), "ALGORITHMS"
_KEY = re.compile(r"[a-z_.0-9]+")
_WORD = re.compile(r"[A-Za-z]{2}")


@dataclass(frozen=True)
class Page:
    """A generated page. ``names``: first columns of its tables are names, which stay; ``codes``: it explains
    the codes.
    """

    name: str
    names: bool = False
    codes: bool = False

    @property
    def source(self) -> Path:
        return ROOT / f"docs/reference/{self.name}.md"

    @property
    def twin(self) -> Path:
        return ROOT / f"docs/reference/{self.name}.zh-CN.md"

    @property
    def table(self) -> Path:
        return ROOT / f"scripts/chinese/{self.name}.txt"

    def texts(self) -> dict[str, str]:
        """The texts of the page and their translations."""
        return read_table(self.table) | (explanations() if self.codes else {})


PAGES = (
    Page("commands"),
    Page("config", codes=True),
    Page("families", names=True),
    Page("foreign-configs"),
    Page("templates", names=True),
)


@dataclass
class Translation:
    """Texts and their Chinese; ``used`` and ``missing`` are filled while a page is translated."""

    texts: dict[str, str]
    used: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)

    def of(self, text: str, stays: bool = False) -> str:
        """The Chinese of a text; itself if it has no words or ``stays`` without a translation."""
        key = text.replace(_NAMES, _THEIR)
        if key in self.texts:
            self.used.add(key)
            return self.texts[key].replace(_THEIR, _NAMES)
        if not stays and _WORD.search(_CODE_OR_TARGET.sub("", text)) and key not in self.missing:
            self.missing.append(key)
        return text

    @property
    def unused(self) -> list[str]:
        return sorted(set(self.texts) - self.used)


def read_table(path: Path) -> dict[str, str]:
    """The pairs of a file. Raises ValueError where one is incomplete or stands twice."""
    pairs: dict[str, str] = {}
    for block in filter(None, path.read_text(encoding="utf-8").strip().split("\n\n")):
        lines = block.strip().split("\n")
        if len(lines) != 2 or lines[0] in pairs:
            raise ValueError(f"{path}: not a text, its translation and an empty line, or twice: {block!r}")
        pairs[lines[0]] = lines[1]
    return pairs


def explanations() -> dict[str, str]:
    """What codes mean, and the Chinese, as cells of a table."""
    return {_cell(code.explanation): _cell(code.chinese) for code in all_codes().values()}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def translated(page: Page, text: str, translation: Translation) -> str:
    """The Chinese twin of a page's ``text``."""
    parts = _FENCE.split(text)
    parts[1::2] = [_COMMENT.sub(lambda m: f"{m[1] or ''}# {translation.of(m[2])}", p) for p in parts[1::2]]
    parts[::2] = ["".join(_blocks(page, part, translation)) for part in parts[::2]]
    return "".join(parts)


def _blocks(page: Page, text: str, translation: Translation) -> Iterator[str]:
    """Yield headings, paragraphs, items and rows, with what stands between them."""
    first = 0
    for end in (*(m.span() for m in _BLOCK.finditer(text)), (len(text), len(text))):
        block, first, between = text[first : end[0]], end[1], text[slice(*end)]
        core = block.strip("\n")
        before, after = block[: len(block) - len(block.lstrip("\n"))], block[len(block.rstrip("\n")) :]
        mark = re.match(r"#+ |- |\d+\. |", core)
        assert mark is not None
        yield before
        if core.startswith("|"):
            yield _row(page, core, translation)
        else:
            words = " ".join(core[mark.end() :].split())
            yield mark[0] + translation.of(
                words, stays=mark[0].startswith("#") and bool(_KEY.fullmatch(words))
            )
        yield after + between


def _row(page: Page, line: str, translation: Translation) -> str:
    cells = [cell.strip() for cell in _CELLS.split(line)[1:-1]]
    if all(re.fullmatch("-+", cell) for cell in cells):
        return line
    found = [translation.of(cell, page.names and number == 0) for number, cell in enumerate(cells)]
    return f"| {' | '.join(found)} |"


def main() -> None:
    """Write every twin; say which texts have no translation, and which translations no text."""
    for page in PAGES:
        translation = Translation(page.texts())
        text = translated(page, page.source.read_text(encoding="utf-8"), translation)
        page.twin.write_text(text, encoding="utf-8")
        for title, found in (("no translation", translation.missing), ("no such text", translation.unused)):
            if found:
                print(f"{page.table}: {title} of:", *found, sep="\n\n")


if __name__ == "__main__":
    main()
