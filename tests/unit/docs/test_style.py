"""The style sheet, as far as a program can hold it: short sentences and lines, the field's words, few words.

It covers the hand-written pages in ``docs/``, the English texts of ``codes.toml`` and the docstrings of
``paceline/``. What is over a limit today has a ceiling, which only falls: lower it when you mend a text.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GENERATED = {
    *("commands", "config", "families", "family-matrix", "foreign-configs", "gpu_support"),
    *("moves", "planner_accuracy", "support", "templates"),
}
MAX_WORDS, USUAL_WORDS, MAX_LINE = 40, 25, 200
#: Words in all hand-written pages, English and Chinese, by ``wc -w``, without generated tables.
ALL_WORDS = 40_000
README_WORDS = 700
#: Page → sentences over 40 words; lines over 200 characters; pages with a 90th percentile over 25 words.
LONG_SENTENCES: dict[str, int] = {}
LONG_LINES: dict[str, int] = {}
LONG_PAGES: set[str] = set()
#: Phrases that hide the actor or the noun, and how often they may occur: (pages, codes.toml).
PHRASES = {
    r"\b(?:is|are) said\b": (0, 0),
    r"\b(?:is|are) named\b": (0, 0),
    r"\b(?:is|are) told\b": (0, 0),
    r"\bof (?:its|their) own\b": (0, 0),
    r"\bone after the other\b": (0, 0),
    r"\bsuch an? \b": (0, 0),
    r"\bthose of\b": (0, 0),
    r"\bbeside\b": (0, 0),
}
LONG_TEXTS_OF_CODES = 0
#: Sentences of docstrings over 25 words, and over 40, without tables: formulas and shapes, most of them.
LONG_IN_DOCSTRINGS = (95, 4)

_MADE = re.compile(
    r"<!-- (?:planner:|library-examples|by-file).*?<!-- (?:end|/library-examples|/by-file) -->", re.DOTALL
)
_ROOMS = re.compile(r"^\| `[\w/]+` \| .*$", re.MULTILINE)  # docstrings in architecture.md, held by a test
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_END = re.compile(r"(?<=[.!?])\s+(?=[^a-z])")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)
_FIELD = re.compile(r"(?:[-*]|\d+\.) |``[^`]+``(?:, ``[^`]+``)*: |\w+: ")
_TABLE = re.compile(r"\S {2,}\S")  # columns: a name, then what it is


def pages(chinese: bool = False) -> list[Path]:
    """Return the hand-written pages."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    mine = [path for path in found if path.name.split(".")[0] not in GENERATED]
    return [path for path in mine if path.name.endswith(".zh-CN.md") == chinese]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def paragraphs(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each paragraph, item and cell of a page, and whether it is prose, not a cell."""
    gathered: list[str] = []
    for line in [*_FENCE.sub("\n", text).splitlines(), ""]:
        stripped = line.strip()
        starts = not stripped or stripped.startswith(("|", "#", "!", "<")) or _ITEM.match(stripped)
        if starts and gathered:
            yield " ".join(gathered), True
            gathered = []
        if stripped.startswith("|"):
            yield from ((cell, False) for cell in re.split(r"(?<!\\)\|", stripped))
        elif stripped and not stripped.startswith(("#", "!", "<")):
            gathered.append(_ITEM.sub("", stripped, count=1) if starts else stripped)


def sentences(text: str) -> list[str]:
    """Return the sentences of one paragraph; code counts as one word, a link as its text."""
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", text))
    return [part for part in _END.split(plain) if words(part)]


def words(sentence: str) -> int:
    return len(re.findall(r"[A-Za-z0-9][\w'’.,-]*", sentence))


def codes() -> Iterator[tuple[str, str]]:
    """Yield (code, text) of the English texts of all rooms' codes.toml."""
    for path in sorted((ROOT / "paceline").rglob("codes.toml")):
        for area, entries in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for name, entry in entries.items():
                if isinstance(entry, dict):
                    yield from (
                        (f"{area}.{name}", entry[key]) for key in ("en", "what", "hint") if key in entry
                    )


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield (file, docstring): each text in triple quotes that begins a line."""
    for path in sorted((ROOT / "paceline").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for found in _QUOTED.finditer(text):
            line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
            if line.strip() in ("", "r"):
                yield name_of(path), found[1]


def sentences_of_docstring(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring; each item and field begins one, and tables have none."""
    for block in re.split(r"\n[ \t]*\n", text):
        lines = [line.strip() for line in block.splitlines()]
        if any(_TABLE.search(line) for line in lines):
            continue
        parts: list[list[str]] = []
        for line in lines:
            if not parts or _FIELD.match(line):
                parts.append([])
            parts[-1].append(line)
        for part in parts:
            yield from sentences(re.sub(r"``[^`]*``", "X", " ".join(part)))


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_sentences_and_lines_of_a_page_are_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    split = [(sentence, prose) for part, prose in paragraphs(text) for sentence in sentences(part)]
    long = [sentence for sentence, _ in split if words(sentence) > MAX_WORDS]
    assert len(long) <= LONG_SENTENCES.get(name_of(page), 0), long
    counts = sorted(words(sentence) for sentence, prose in split if prose)
    usual = counts[int(0.9 * (len(counts) - 1))] if counts else 0
    assert usual <= USUAL_WORDS or name_of(page) in LONG_PAGES, (usual, counts[-5:])
    lines = [line for line in text.splitlines() if len(line) > MAX_LINE]
    assert len(lines) <= LONG_LINES.get(name_of(page), 0), lines


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_without_an_actor_become_fewer(phrase: str) -> None:
    in_pages = [
        (name_of(page), match)
        for page in pages()
        for match in re.findall(rf".{{0,40}}{phrase}.{{0,20}}", page.read_text(encoding="utf-8"))
    ]
    in_codes = [code for code, text in codes() if re.search(phrase, text)]
    assert len(in_pages) <= PHRASES[phrase][0], in_pages
    assert len(in_codes) <= PHRASES[phrase][1], in_codes


def test_texts_of_codes_are_short() -> None:
    long = [code for code, text in codes() if any(words(part) > MAX_WORDS for part in sentences(text))]
    assert len(long) <= LONG_TEXTS_OF_CODES, Counter(long)
    assert sum(1 for _ in codes()) > 700


def test_sentences_of_docstrings_are_short() -> None:
    split = [(file, part) for file, text in docstrings() for part in sentences_of_docstring(text)]
    assert len(split) > 10_000
    for limit, ceiling in zip((USUAL_WORDS, MAX_WORDS), LONG_IN_DOCSTRINGS, strict=True):
        long = [(file, part) for file, part in split if words(part) > limit]
        assert len(long) <= ceiling, long


def test_the_pages_have_no_more_words() -> None:
    total = 0
    for page in (*pages(), *pages(chinese=True)):
        text = _MADE.sub("", page.read_text(encoding="utf-8"))
        total += len((_ROOMS.sub("", text) if page.stem == "architecture" else text).split())
    assert total <= ALL_WORDS


def test_the_readme_stays_short() -> None:
    for name in ("README.md", "README.zh-CN.md"):
        assert len((ROOT / name).read_text(encoding="utf-8").split()) <= README_WORDS, name


def test_the_changelog_has_few_short_items() -> None:
    releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    items = {release.splitlines()[0]: re.findall(r"^- .*$", release, re.MULTILINE) for release in releases}
    assert len(items) >= 7 and all(items.values())
    assert {name: len(found) for name, found in items.items() if len(found) > 25} == {}
    assert [item for found in items.values() for item in found if len(item) > 240] == []


def test_a_long_sentence_of_a_docstring_is_seen() -> None:
    text = "One two.\n\n``a b``: three\nfour. - five\n- six seven ``x. y``\n\nname   a table\nother  of it\n"
    assert [words(part) for part in sentences_of_docstring(text)] == [2, 3, 1, 3]


def test_a_long_sentence_is_seen() -> None:
    text = "One two. Three `a b c` four\nfive [six](x.md).\n\n- Seven.\n\n| eight | nine. Ten |\n"
    text += "\n```\nno\n```\n"
    split = [sentence for part, _ in paragraphs(text) for sentence in sentences(part)]
    assert [words(sentence) for sentence in split] == [2, 5, 1, 1, 1, 1]
