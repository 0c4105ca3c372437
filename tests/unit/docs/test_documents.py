"""README and guides say what is true: YAML that loads, verbs and options that exist, links that lead
somewhere, twins that agree.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from paceline.cli.main import VERBS, application_of
from paceline.config.load import load_config

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
DOCUMENTS = ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "dev/benchmarks/README.md", *PAGES)
TWINS = [
    (english, chinese)
    for english in DOCUMENTS
    if (chinese := english.replace(".md", ".zh-CN.md")) != english and chinese in DOCUMENTS
]
#: Pages without a Chinese twin: what programs measure, and what those who change the program read.
ENGLISH = {
    "docs/how-to/add.md",
    "docs/explanation/one-step.md",
    "docs/explanation/architecture.md",
    "docs/reference/family-matrix.md",
    "docs/reference/gpu_support.md",
    "docs/reference/moves.md",
    "docs/explanation/planner_accuracy.md",
    "docs/reference/support.md",
}


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def commands(document: str) -> list[str]:
    """Lines of the bash blocks without comments."""
    lines = "".join(blocks(document, "bash")).splitlines()
    return [text for line in lines if (text := re.sub(r"\s+#.*", "", line).strip())]


def test_every_page_has_a_chinese_twin() -> None:
    alone = {p for p in PAGES if not p.endswith(".zh-CN.md")} - {english for english, _ in TWINS}
    assert alone == ENGLISH
    assert all((ROOT / chinese).exists() for _, chinese in TWINS) and len(TWINS) > 10


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert ((ROOT / document).parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_headings_that_are_linked_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", text):
        page = ((ROOT / document).parent / target if target else ROOT / document).read_text(encoding="utf-8")
        headings = {anchor_of(heading) for heading in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}
        assert anchor in headings, anchor


@pytest.mark.parametrize("document", DOCUMENTS)
def test_yaml_blocks_are_configs(document: str, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(document, "yaml")):
        if "model:" not in text:
            text = "model: {name_or_path: some/model}\n" + text
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        load_config(str(path))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_verbs_and_options_exist(document: str) -> None:
    found = [c for c in commands(document) if re.search(r"(^|/| )paceline ", c)]
    for command in found:
        verb, *rest = re.split(r"\bpaceline ", command, maxsplit=1)[1].split()
        assert verb in VERBS, command
        leaf = typer.main.get_command(application_of(verb))
        known = {o for parameter in leaf.params for o in (*parameter.opts, *parameter.secondary_opts)}
        if not leaf.context_settings.get("ignore_unknown_options") and not hasattr(leaf, "commands"):
            assert {w for w in rest if w.startswith("--")} <= known, command


@pytest.mark.parametrize("document", DOCUMENTS)
def test_scripts_named_in_commands_exist(document: str) -> None:
    for command in commands(document):
        for name in re.findall(r"\S+\.py\b", command):
            assert (ROOT / name).exists(), command


@pytest.mark.parametrize(("english", "chinese"), TWINS)
def test_twins_have_the_same_commands_and_configs(english: str, chinese: str) -> None:
    assert commands(english) == commands(chinese)
    without = [[re.sub(r"\s*#.*", "", b) for b in blocks(d, "yaml")] for d in (english, chinese)]
    assert without[0] == without[1]
    assert (ROOT / english).read_text(encoding="utf-8").count("\n## ") == (ROOT / chinese).read_text(
        encoding="utf-8"
    ).count("\n## ")


def shape(document: str) -> dict[str, object]:
    """What a twin shares: headings, rows of tables, items of lists, links, and the codes that it names."""
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    marks = {"headings": r"^#+ ", "rows": r"^\|", "items": r"^(?:- |\d+\. )", "links": r"\]\("}
    counts: dict[str, object] = {
        name: len(re.findall(mark, text, re.MULTILINE)) for name, mark in marks.items()
    }
    return counts | {"codes": set(re.findall(r"`([a-z]+\.[a-z_]+)`", text))}


@pytest.mark.parametrize(("english", "chinese"), TWINS)
def test_twins_have_the_same_shape_and_codes(english: str, chinese: str) -> None:
    assert shape(english) == shape(chinese)
