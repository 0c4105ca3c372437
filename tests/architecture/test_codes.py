"""Every finding is made by a Code, which stands once, in its room's ``codes.py``, with an explanation in
real sentences; and somebody raises it.
"""

from __future__ import annotations

import ast
import re

from raised import CODE, raised, uses
from sources import Source, sources

from paceline.core.diagnostics import all_codes

DIAGNOSTICS = "paceline/core/diagnostics.py"
TABLE = re.compile(r"paceline/[a-z]+/codes\.py")


def _tables() -> list[Source]:
    return [source for source in sources() if TABLE.fullmatch(source.path)]


def made_otherwise(source: Source) -> list[str]:
    """Calls that make a finding, or change its code, without a Code; and codes that stand elsewhere than
    in a room's table.
    """
    found = []
    for name, call in source.calls():
        last = name.rpartition(".")[2]
        changed = last == "replace" and any(keyword.arg == "code" for keyword in call.keywords)
        if last == "Diagnostic" or changed or (last == "Code" and not TABLE.fullmatch(source.path)):
            found.append(f"{source.at(call)} {last}")
    return found


def test_a_finding_is_made_by_a_code_and_a_code_stands_in_its_rooms_table() -> None:
    wrong = [place for source in sources() if source.path != DIAGNOSTICS for place in made_otherwise(source)]
    assert wrong == [], "a line in the room's codes.py, and codes.ITS_NAME(what, where, found, hint)"


def test_a_table_of_codes_holds_nothing_else_and_each_code_once() -> None:
    lines = 0
    for source in _tables():
        _, future, imported, *codes = source.tree.body
        assert [ast.unparse(node) for node in (future, imported)] == [
            "from __future__ import annotations",
            "from paceline.core.diagnostics import Code",
        ], source.path
        for line in codes:
            assert isinstance(line, ast.Assign) and isinstance(line.value, ast.Call), source.at(line)
            constant, code = ast.unparse(line.targets[0]), ast.literal_eval(line.value.args[0])
            assert CODE.fullmatch(code) and constant == code.upper().replace(".", "_"), source.at(line)
        lines += len(codes)
    assert len(all_codes()) == lines > 500


def test_every_code_is_raised() -> None:
    assert sorted(all_codes().keys() - raised().keys()) == [], "explained, and raised by nobody"


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
