"""Every finding is made by a Code, which stands once, in its room's ``codes.toml``, with an explanation in
real sentences of both languages; and somebody raises it.
"""

from __future__ import annotations

import ast
import re
import tomllib

from raised import CODE, raised, uses
from sources import PACKAGE, Source, sources
from support import load_script

from paceline.core.diagnostics import all_codes

DIAGNOSTICS = "paceline/core/diagnostics.py"
IN_SEVERAL_ROOMS = 38
TABLES = sorted(PACKAGE.rglob("codes.toml"))


def made_otherwise(source: Source) -> list[str]:
    """Calls that make a finding, or change its code, without a Code; and codes that stand in no table."""
    found = []
    for name, call in source.calls():
        last = name.rpartition(".")[2]
        changed = last == "replace" and any(keyword.arg == "code" for keyword in call.keywords)
        if last in ("Diagnostic", "Code") or changed:
            found.append(f"{source.at(call)} {last}")
    return found


def test_a_finding_is_made_by_a_code_and_a_code_stands_in_its_rooms_table() -> None:
    wrong = [place for source in sources() if source.path != DIAGNOSTICS for place in made_otherwise(source)]
    assert wrong == [], "a table in the room's codes.toml, and codes.ITS_NAME(what, where, found, hint)"


def test_a_code_stands_once_and_has_both_languages() -> None:
    names = []
    for file in TABLES:
        for group, entries in tomllib.loads(file.read_text(encoding="utf-8")).items():
            for short, texts in entries.items():
                names.append(f"{group}.{short}")
                assert texts.keys() >= {"en", "zh"} and re.search("[一-鿿]", texts["zh"]), names[-1]
    assert all(CODE.fullmatch(name) for name in names)
    assert len({name.replace(".", "_") for name in names}) == len(names) == len(all_codes()) > 500


def test_stubs_are_of_the_tables() -> None:
    found = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("codes.pyi")}
    assert found == load_script("code_stubs").stubs(), "python scripts/code_stubs.py writes them"
    assert {path.with_suffix(".py") for path in found} == {*PACKAGE.rglob("codes.py")}


def test_every_code_is_raised() -> None:
    assert sorted(all_codes().keys() - raised().keys()) == [], "explained, and raised by nobody"


def test_few_codes_are_built_in_several_rooms() -> None:
    """A check stands in one place and is asked: lower the number with each code that becomes one function."""
    rooms = {code: {place.split("/")[1] for place in places} for code, places in raised().items()}
    several = sorted(code for code, names in rooms.items() if len(names) > 1)
    assert len(several) <= IN_SEVERAL_ROOMS, several


def test_an_explanation_is_of_real_sentences() -> None:
    explanations = {name: code.explanation for name, code in all_codes().items()}
    assert [name for name, text in explanations.items() if re.search(r"[{}]", text)] == []
    short = [
        name for name, text in explanations.items() if not text.endswith((".", ")")) or len(text.split()) < 4
    ]
    assert short == []


SAMPLE = """
from paceline.core import codes as core_codes
from paceline.data import codes
raise DataError(codes.DATA_FORMAT("gone"))
refuse(core_codes.CORE_TARGET, "x")
if found.code == codes.DATA_HUB.name: pass
"""
WRONG = (
    'Diagnostic("a.b", "x"); diagnostics.Diagnostic(code, "x"); replace(found, code="a.b"); Code("a.b", "Some'
    ' text of it.")'
)


def test_uses_and_ways_around_are_seen() -> None:
    sample, wrong = (Source("paceline/x.py", "", text, ast.parse(text)) for text in (SAMPLE, WRONG))
    assert uses(sample) == {"data.format": {"paceline/x.py:4"}, "core.target": {"paceline/x.py:5"}}
    assert len(made_otherwise(wrong)) == 4 and made_otherwise(sample) == []
