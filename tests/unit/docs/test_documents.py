"""README and guides say what is true: YAML that loads, verbs and options that exist, links that lead
somewhere, twins that agree.
"""

from __future__ import annotations

import functools
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


@functools.cache
def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text_of(document), re.DOTALL)


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def commands(document: str) -> list[str]:
    """Lines of the bash blocks without comments."""
    lines = "".join(blocks(document, "bash")).splitlines()
    return [text for line in lines if (text := re.sub(r"\s+#.*", "", line).strip())]


@functools.cache
def command_of(verb: str) -> typer.core.TyperCommand | typer.core.TyperGroup:
    return typer.main.get_command(application_of(verb))  # type: ignore[return-value]


COMMANDS = [(document, command) for document in DOCUMENTS for command in commands(document)]


def test_every_page_has_a_chinese_twin() -> None:
    alone = {p for p in PAGES if not p.endswith(".zh-CN.md")} - {english for english, _ in TWINS}
    assert alone == ENGLISH
    assert all((ROOT / chinese).exists() for _, chinese in TWINS) and len(TWINS) > 10


def test_links_lead_to_files() -> None:
    lost = [
        (document, target)
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#]+)", text_of(document))
        if not ((ROOT / document).parent / target).exists()
    ]
    assert lost == []


def test_no_text_is_taken_for_html() -> None:
    """``<image>`` outside of code would be an element of the site's page, and not be read."""
    code = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
    tags = [(name, tag) for name in DOCUMENTS for tag in re.findall(r"<\w+>", code.sub("", text_of(name)))]
    assert tags == []


def test_headings_that_are_linked_exist() -> None:
    anchors: dict[Path, set[str]] = {}
    lost = []
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", text_of(document)):
            page = ((ROOT / document).parent / target if target else ROOT / document).resolve()
            if page not in anchors:
                headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
                anchors[page] = {anchor_of(heading) for heading in headings}
            if anchor not in anchors[page]:
                lost.append((document, target, anchor))
    assert lost == []


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if blocks(name, "yaml")])
def test_yaml_blocks_are_configs(document: str, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(document, "yaml")):
        if "model:" not in text:
            text = "model: {name_or_path: some/model}\n" + text
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        load_config(str(path))


def test_verbs_and_options_exist() -> None:
    unknown = []
    for document, command in COMMANDS:
        if not re.search(r"(^|/| )paceline ", command):
            continue
        verb, *rest = re.split(r"\bpaceline ", command, maxsplit=1)[1].split()
        if verb not in VERBS:
            unknown.append((document, verb, command))
            continue
        leaf = command_of(verb)
        known = {o for parameter in leaf.params for o in (*parameter.opts, *parameter.secondary_opts)}
        if not leaf.context_settings.get("ignore_unknown_options") and not hasattr(leaf, "commands"):
            asked = {word for word in rest if word.startswith("--")}
            unknown += [(document, option, command) for option in asked - known]
    assert unknown == [] and len(COMMANDS) > 200


def test_scripts_named_in_commands_exist() -> None:
    named = [(document, name) for document, text in COMMANDS for name in re.findall(r"\S+\.py\b", text)]
    assert named and [(document, name) for document, name in named if not (ROOT / name).exists()] == []


def test_twins_have_the_same_commands_and_configs() -> None:
    for english, chinese in TWINS:
        assert commands(english) == commands(chinese), chinese
        without = [[re.sub(r"\s*#.*", "", b) for b in blocks(d, "yaml")] for d in (english, chinese)]
        assert without[0] == without[1], chinese
        assert text_of(english).count("\n## ") == text_of(chinese).count("\n## "), chinese


def shape(document: str) -> dict[str, object]:
    """What a twin shares: headings, rows of tables, items of lists, links, and the codes that it names."""
    text = re.sub(r"```.*?```", "", text_of(document), flags=re.DOTALL)
    marks = {"headings": r"^#+ ", "rows": r"^\|", "items": r"^(?:- |\d+\. )", "links": r"\]\("}
    counts: dict[str, object] = {
        name: len(re.findall(mark, text, re.MULTILINE)) for name, mark in marks.items()
    }
    return counts | {"codes": set(re.findall(r"`([a-z]+\.[a-z_]+)`", text))}


def test_twins_have_the_same_shape_and_codes() -> None:
    differ = [(chinese, shape(english), shape(chinese)) for english, chinese in TWINS]
    assert [of for of in differ if of[1] != of[2]] == []
