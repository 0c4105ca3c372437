"""The pages of the documentation site: ``python scripts/site_pages.py FOLDER`` writes them for mkdocs.yml.

They are written to be read in the checkout. There a link leads to a Chinese twin by its name, and to any file
of the repository; on the site twins share a name (the i18n plugin puts them below ``zh/``), README and
other files outside ``docs/`` are pages, and any other file that is linked is copied below ``files/``.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Pages that stand outside docs/, and where they are on the site.
OUTSIDE = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "dev/benchmarks/README.md": "benchmarks.md",
}
#: A link or an image: its text, its target, its anchor.
LINK = re.compile(r"(\[[^\]\n]*\])\(([^)#\s]*)((?:#[^)\s]*)?)\)")
#: The link at the head of a page to its other language: the site has a menu for that.
_LANGUAGE = re.compile(r"^\[(?:中文|中文说明|English)\]\([^)]*\)(?: · )?", re.MULTILINE)
_CHINESE_LINE_END = re.compile(r"(?<=[。！？；：，、）])\n *(?=[\u3400-\u9fff`（“])")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_STYLE = """.md-grid { max-width: 76rem; }
.md-typeset table:not([class]) { font-size: .64rem; }
.md-typeset table:not([class]) th { min-width: 3rem; }
.md-typeset td:first-child code { white-space: nowrap; }
/* The theme's colours where their contrast is below 4.5, and links that differ by more than colour */
[data-md-color-scheme][data-md-color-primary=teal] { --md-primary-fg-color: #00796b; }
[data-md-color-scheme=default][data-md-color-primary=teal] { --md-typeset-a-color: #00796b; }
[data-md-color-scheme=default] {
  --md-default-fg-color--light: #000000a6; --md-code-hl-number-color: #c62424;
}
[data-md-color-scheme=slate] {
  --md-default-fg-color--light: hsla(var(--md-hue), 15%, 90%, .74); --md-code-hl-number-color: #f08a7e;
  --md-code-hl-constant-color: #ac9eee; --md-code-hl-keyword-color: #86a8ea;
  --md-code-hl-function-color: #d78be4; --md-code-hl-special-color: #f58aad;
  --md-code-hl-string-color: #3fc584;
}
.md-typeset :is(p, li, td) > a:not(.headerlink) { text-decoration: underline; }
"""
#: What the theme's own elements lack for a screen reader and for the keyboard.
_SCRIPT = """document$.subscribe(() => {
  const label = document.documentElement.lang === "zh" ? "搜索" : "Search";
  document.querySelector(".md-search")?.setAttribute("aria-label", label);
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((wrap) => { wrap.tabIndex = 0; });
});
"""


def write_pages(folder: Path) -> None:
    """Write pages, pictures, linked files and the style sheet into ``folder``, which must not exist."""
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.json", "*.md"))
    (folder / "site.css").write_text(_STYLE, encoding="utf-8")
    (folder / "site.js").write_text(_SCRIPT, encoding="utf-8")
    shutil.copyfile(ROOT / "scripts/search-worker.js", folder / "search-worker.js")
    for origin, page in sources():
        text = (ROOT / origin).read_text(encoding="utf-8")
        for _, target, _ in links(text):
            path = _path(origin, target)
            if not path.startswith("docs/") and path not in OUTSIDE and (ROOT / path).is_file():
                copy = folder / "files" / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / path, copy)
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(turned(origin, text), encoding="utf-8")


def sources() -> Iterator[tuple[str, str]]:
    """(a page's path in the repository, its path on the site)."""
    yield from OUTSIDE.items()
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.relative_to(ROOT / "docs").as_posix()
        yield f"docs/{page}", page.replace(".zh-CN.md", ".zh.md")


def links(text: str) -> list[tuple[str, str, str]]:
    """(text, target, anchor) of each link outside of code blocks."""
    return LINK.findall(FENCE.sub("", text))


def turned(origin: str, text: str) -> str:
    """The text of the page ``origin`` with its links as the site has them."""
    parts = FENCE.split(_LANGUAGE.sub("", text))
    parts[::2] = [LINK.sub(lambda m: _link(origin, m[1], m[2], m[3]), part) for part in parts[::2]]
    if origin.endswith(".zh-CN.md"):  # a browser would show a line's end as a space
        parts[::2] = [_CHINESE_LINE_END.sub("", part) for part in parts[::2]]
    return "".join(parts)


def _path(origin: str, target: str) -> str:
    """A link's target as a path in the repository; unchanged where it leads out of it."""
    if not target or "://" in target:
        return target
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def _site_path(path: str) -> str | None:
    """Return where the site has the file ``path`` of the repository, or None."""
    if path in OUTSIDE:
        return OUTSIDE[path].replace(".zh.md", ".md")
    if path.startswith("docs/"):
        page = path.removeprefix("docs/").replace(".zh-CN.md", ".md")
        return None if page.endswith(".json") else page
    return f"files/{path}" if (ROOT / path).is_file() else None  # the site has no folders of the repository


def _link(origin: str, text: str, target: str, anchor: str) -> str:
    if not target or "://" in target:
        return f"{text}({target}{anchor})"
    page = _site_path(_path(origin, target))
    if page is None:
        return text[1:-1]
    here = OUTSIDE.get(origin) or origin.removeprefix("docs/")
    return f"{text}({posixpath.relpath(page, posixpath.dirname(here) or '.')}{anchor})"


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
