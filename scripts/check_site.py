"""The built site has what it links to (pictures, scripts, pages) and a search index: `check_site.py SITE`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Links(HTMLParser):
    """Collects what ``src`` and ``href`` of a page name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href") and value]


def missing(site: Path) -> Iterator[str]:
    """Yield ``page: link`` for each link inside the site that leads nowhere, and the index of the search."""
    if not (site / "search/search_index.js").exists():
        yield "search/search_index.js"  # a site that is opened from a folder reads it in place of the JSON
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":
            continue  # its links are absolute
        reader = _Links()
        reader.feed(page.read_text(encoding="utf-8"))
        for link in dict.fromkeys(reader.found):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            if not (page.parent / unquote(parts.path)).exists():
                yield f"{page.relative_to(site)}: {link}"


if __name__ == "__main__":
    found = list(missing(Path(sys.argv[1])))
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
