"""The pages that ``make docs`` builds the site from: links lead to pages or files of the site, and each
page is in the navigation, whose words are translated.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from support import load_script

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return load_script("site_pages")


@pytest.fixture(scope="module")
def folder(site: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("site") / "pages"
    site.write_pages(written)
    return written


def test_links_lead_to_what_the_site_has(site: ModuleType, folder: Path) -> None:
    pages = sorted(folder.rglob("*.md"))
    found = [
        (page.relative_to(folder).parent, target)
        for page in pages
        for _, target, _ in site.links(page.read_text(encoding="utf-8"))
        if target and "://" not in target
    ]
    assert [(place, target) for place, target in found if not (folder / place / target).exists()] == []
    assert len(found) > 200 and any("files/examples/" in target for _, target in found)
    assert not any(".zh" in target for _, target in found if target.endswith(".md")), "the plugin chooses"


def test_code_blocks_stay_as_they_are(site: ModuleType) -> None:
    text = "[中文](guide.zh-CN.md) · [a](../README.md)\n```\n[a](../README.md)\n```\n[b](../paceline)\n"
    assert site.turned("docs/guide.md", text) == "[a](index.md)\n```\n[a](../README.md)\n```\nb\n"


def test_lines_of_a_chinese_paragraph_are_joined(site: ModuleType) -> None:
    text = "一。\n二，\n`x`。\n\n- 三。\n  四。\n- 五。\n"
    assert site.turned("docs/guide.zh-CN.md", text) == "一。二，`x`。\n\n- 三。四。\n- 五。\n"
    assert site.turned("docs/guide.md", text) == text


def test_every_page_is_in_the_navigation(folder: Path) -> None:
    config, navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")
    listed = re.findall(r"^ +- [^:]+: ([\w/-]+\.md)$", navigation, re.MULTILINE)
    pages = [path.relative_to(folder).as_posix() for path in folder.rglob("*.md")]
    assert sorted(listed) == sorted(page for page in pages if not page.endswith(".zh.md"))
    titles = re.findall(r"^ +- ([^:\n]+):(?: [\w/-]+\.md)?$", navigation, re.MULTILINE)
    translated = re.findall(r"^            ([^:\n]+): .", config, re.MULTILINE)
    assert set(titles) == set(translated)


def test_what_a_built_page_lacks_is_named(tmp_path: Path) -> None:
    """mkdocs checks the links of Markdown; the plugin for languages once left out a picture whose name held
    a language.
    """
    (tmp_path / "zh").mkdir()
    (tmp_path / "a%20b.png").touch()
    (tmp_path / "a b.png").touch()
    page = '<img src="../a%20b.png"><img src="c.png"><a href="#x"></a><a href="https://x/y"></a>'
    (tmp_path / "zh" / "index.html").write_text(page + '<link href="../none.css?v=1"><img src="c.png">')
    assert list(load_script("check_site").missing(tmp_path)) == [
        "search/search_index.js",
        "zh/index.html: c.png",
        "zh/index.html: ../none.css?v=1",
    ]


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no chromium")
def test_the_search_runs_from_a_folder_and_gets_telling_words(tmp_path: Path) -> None:
    """Chromium starts no worker from a folder, so ``search-worker.js`` has a frame for it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    shutil.copy(ROOT / "scripts/search-worker.js", tmp_path)
    (tmp_path / "echo.js").write_text("addEventListener('message', (event) => postMessage(event.data))")
    (tmp_path / "page.html").write_text(
        '<html lang="en"><body><script src="search-worker.js"></script></body></html>'
    )
    pages = [{"location": name} for name in ("how-to/data.html", "reference/config.html", "zh/index.html")]
    answer = """(message) => new Promise((resolve) => {
        const worker = new Worker("echo.js");
        worker.addEventListener("message", (event) => resolve(event.data));
        worker.postMessage(message);
    })"""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page()
        page.goto(f"file://{tmp_path}/page.html")
        index = page.evaluate(answer, {"type": 0, "data": {"config": {"lang": ["en", "zh"]}, "docs": pages}})
        queries = ["mask the user's turns", "resume on two GPUs", "what is it", "loss across"]
        queries.append("losses batches policies processes")
        asked = [page.evaluate(answer, {"type": 2, "data": query})["data"] for query in queries]
        browser.close()
    assert index["data"]["docs"] == [pages[0], {**pages[1], "boost": 0.2}]
    assert index["data"]["config"]["lang"] == ["en"]
    assert asked[:-1] == ["mask user turn", "resume two GPU", "what is it", "loss across"]
    assert asked[-1] == "loss batch policy process"
