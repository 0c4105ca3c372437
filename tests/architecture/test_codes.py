"""Every code that the package can raise has an explanation in real sentences, and no explanation is of a code that nobody raises."""

from __future__ import annotations

import ast
import re
from functools import cache

from raised import CODE, Raised, raised_in
from sources import Source, sources

from paceline.cli.codes import EXPLANATIONS
from paceline.config.codes import EXPLANATIONS as OF_THE_CONFIG
from paceline.core.codes import TABLES
from paceline.data.problems import REASONS

# What the scan cannot follow, by file and expression: the codes that stand there, each set from its own source.
ELSEWHERE = {
    ("paceline/data/problems.py", "r"): {f"data.{reason}" for reason in REASONS},
    ("paceline/data/problems.py", "reason"): {f"data.{reason}" for reason in REASONS},
    ("paceline/runtime/message.py", "code"): set(),  # another rank's own
    ("paceline/training/failure.py", "first.code"): set(),  # another finding's own
}


@cache
def raised() -> Raised:
    return raised_in(sources())


def test_every_code_can_be_followed() -> None:
    unknown = {(place.rsplit(":", 1)[0], text): place for place, text in raised().unknown.items()}
    assert unknown.keys() == ELSEWHERE.keys(), "name the codes that this expression can be in ELSEWHERE"
    assert [code for code in raised().codes if not CODE.fullmatch(code)] == []
    assert len(raised().codes) > 400


def test_every_code_is_explained_and_every_explanation_has_a_code() -> None:
    can_be = {*raised().codes, *(code for codes in ELSEWHERE.values() for code in codes)}
    missing = {code: sorted(raised().codes.get(code, ())) for code in can_be - EXPLANATIONS.keys()}
    assert missing == {}, "one line each in paceline/core/codes/*.py (codes of config rules: config/codes.py)"
    assert sorted(EXPLANATIONS.keys() - can_be) == [], "explained, and raised by nobody"


def test_no_code_has_two_explanations() -> None:
    names = [code for table in (*TABLES, OF_THE_CONFIG) for code in table]
    assert sorted(code for code in set(names) if names.count(code) > 1) == []


def test_a_table_says_each_code_once() -> None:
    for source in sources():
        if source.path.startswith("paceline/core/codes/") or source.path == "paceline/config/codes.py":
            for node in source.nodes():
                if isinstance(node, ast.Dict):
                    keys = [k.value for k in node.keys if isinstance(k, ast.Constant)]
                    assert sorted(k for k in set(keys) if keys.count(k) > 1) == [], source.path


def test_an_explanation_is_of_real_sentences() -> None:
    templates = [code for code, text in EXPLANATIONS.items() if re.search(r"[{}]", text)]
    assert templates == []
    short = [c for c, t in EXPLANATIONS.items() if not t.endswith((".", ")")) or len(t.split()) < 4]
    assert short == []


SAMPLE = """
KNOWN = {1: ("table.one", "x"), 2: ("table.two", "y")}
LONE = "module.lone"
def maker(code, what): raise Error(Diagnostic(code, what))
def _near(reason): return Diagnostic(f"near.{reason}", "")
class Kind:
    def __init__(self, kind): self.kind = kind
    def load(self): raise Error(Diagnostic(f"{self.kind}.unknown", ""))
class Rules:
    def refuse(self, code, what): self.found.append(Diagnostic(code, what))
def refuse(verb): return "not.a_code"
def use(number, key, rules):
    maker("plain.call", "x")
    maker("if.yes" if key == "if.asked" else "if.no", "x")
    code, text = KNOWN.get(number, ("table.other", ""))
    maker(code, text)
    found = []
    found.append(("loop.one", "some.key"))
    for code, where in found:
        Diagnostic(code, where)
    _near("miss")
    Diagnostic(code=LONE, what="")
    rules.refuse("rule.broken", "")
    refuse("a.verb")
    Kind("thing")
    Diagnostic(computed(), "")
"""


def test_the_scan_follows_each_way_a_code_is_made() -> None:
    found = raised_in((Source("paceline/sample.py", "", SAMPLE, ast.parse(SAMPLE)),))
    assert set(found.codes) == {
        "plain.call", "if.yes", "if.no", "table.one", "table.two", "table.other", "loop.one",
        "near.miss", "module.lone", "rule.broken", "thing.unknown",
    }  # fmt: skip
    assert list(found.unknown.values()) == ["computed()"]
