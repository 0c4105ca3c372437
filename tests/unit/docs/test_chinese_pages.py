"""Chinese twins of generated pages say what the English ones say, whole: no text is without a translation."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from support import load_script

HOW = "write the missing texts into scripts/chinese/ and run python scripts/chinese_pages.py"
NAMES = sorted(path.stem for path in (Path(__file__).resolve().parents[3] / "scripts/chinese").glob("*.txt"))


@pytest.fixture(scope="module")
def chinese() -> ModuleType:
    return load_script("chinese_pages")


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_says_what_the_page_says(name: str, chinese: ModuleType) -> None:
    (page,) = [page for page in chinese.PAGES if page.name == name]
    translation = chinese.Translation(page.texts())
    twin = chinese.translated(page, page.source.read_text(encoding="utf-8"), translation)
    assert translation.missing == [], HOW
    assert translation.unused == [], "translations of texts that are gone"
    assert page.twin.read_text(encoding="utf-8") == twin, HOW


def test_each_kind_of_text_is_translated(chinese: ModuleType) -> None:
    """Headings, paragraphs over lines, items, cells and comments; names and code stay, the rest is missed."""
    text = (
        "## A head\n\nwords over\nlines\n- an item\n- `code` 12\n\n| a cell | `x\\|y` |\n|---|---|\n"
        "| name | new |\n\n```bash\nls -l  # a comment\n```\n\n## Codes\n\n| a cell |\n"
    )
    texts = ("A head", "words over lines", "an item", "a cell", "a comment", "Codes", "gone")
    translation = chinese.Translation(dict.fromkeys(texts, "中"))
    page = chinese.Page("commands", names=True)
    assert chinese.translated(page, text, translation) == (
        "## 中\n\n中\n- 中\n- `code` 12\n\n| 中 | `x\\|y` |\n|---|---|\n"
        "| name | new |\n\n```bash\nls -l  # 中\n```\n\n## 中\n\n| 中 |\n"
    )
    assert (translation.missing, translation.unused) == (["new"], ["gone"])


def test_a_text_stands_once_in_the_file_of_a_page(chinese: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "page.txt"
    file.write_text("one\n一\n\ntwo\n二\n", encoding="utf-8")
    assert chinese.read_table(file) == {"one": "一", "two": "二"}
    for wrong in ("one\n一\n\none\n壹\n", "three\n", "three\n三\n叁\n"):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(ValueError, match=r"page\.txt"):
            chinese.read_table(file)
