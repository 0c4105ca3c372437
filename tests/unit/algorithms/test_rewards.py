"""Rewards: what the built-in ones say, and that nothing a function or an answer does goes unnamed."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.algorithms.rewards import code_reward
from paceline.algorithms.rewards.builtin import (
    Sample,
    ended,
    exact_match,
    length,
    marked_number,
    numeric,
    overlong,
    regex,
    tags,
)
from paceline.algorithms.rewards.scoring import REWARDS, RewardSpec, Scored, Scorer
from paceline.core.errors import ConfigError, PacelineError
from paceline.training.rollout.build import RolloutSetup


def said(completion: str, answer: str = "72", **more: Any) -> Sample:
    return Sample("How many?", completion, {"answer": answer, **more}, num_tokens=len(completion.split()))


def test_exact_match() -> None:
    assert exact_match(said(" 72\n")) == 1.0
    assert exact_match(said("72.")) == 0.0
    assert exact_match(said("Yes", "yes")) == 0.0
    assert exact_match(said("Yes", "yes"), ignore_case=True) == 1.0
    assert exact_match(said("")) == 0.0
    with pytest.raises(KeyError):
        exact_match(Sample("q", "a"))


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("48 + 24\n#### 72", 1),
        ("#### $72.00", 1),
        ("####72 clips", 1),
        ("#### 1,234\n#### 72", 1),
        ("#### 7.2e1", 1),
        ("#### 73", 0),
        ("72", 0),
        ("#### ", 0),
        ("", 0),
        ("#### seventy-two", 0),
        ("#### -72", 0),
        ("#### 72e999999999", 0),
        ("####" * 5000, 0),
        ("#### 0x48", 0),
        ("#### __import__('os').system('false')", 0),
    ],
)
def test_numeric(completion: str, right: int) -> None:
    assert numeric(said(completion, "one\n#### 72")) == right
    assert numeric(said(completion)) == right  # an expected answer without the mark is a number itself


@pytest.mark.parametrize(("on_error", "checks"), [("error", 1), ("skip", 0)])
def test_expected_answers_without_a_number_are_found_in_advance(on_error: str, checks: int) -> None:
    found = Scorer([RewardSpec("numeric")], on_error=on_error).row_checks
    assert len(found) == checks
    rows = [("row 1", {"answer": "so\n#### 1,000"}), ("row 2", {"answer": "many"}), ("row 3", {})]
    for check in found:
        (line,) = check.unusable(rows)
        assert line == "row 2: 'many'" and check.finding("k", line).code == "rewards.no_number"


def test_numeric_elsewhere() -> None:
    assert numeric(said("It is 70, no, 72"), anywhere=True) == 1.0
    assert numeric(said("none"), anywhere=True) == 0.0
    assert marked_number("#### 1,000,000.50", anywhere=False) == marked_number("1000000.5", anywhere=True)
    with pytest.raises(ValueError, match="no number"):
        numeric(said("#### 1", "unknown"))


def test_form_and_length() -> None:
    assert regex(said("a\nb 72"), pattern=r"a.*\d+$") == 1.0
    assert regex(said("a\nb 72"), pattern=r"\d+", whole=True) == 0.0
    good = "<think>x</think>\n<answer>72</answer>"
    assert tags(said(good)) == 1.0
    for bad in (
        good + "!",
        "<answer>72</answer>",
        "<think>x</think>",
        good + good,
        "<answer>1</answer><think>2</think>",
        "<think>x</answer>",
    ):
        assert tags(said(bad)) == 0.0
    assert tags(said("<a>1</a>"), names=["a"]) == 1.0
    opened, given = "1</think><answer>2</answer>", "<|assistant|>\n<think>\n"  # as DeepSeek-R1's template
    assert tags(replace(said(opened), opening=given)) == 1.0 and tags(said(opened)) == 0.0
    assert tags(replace(said(f"<think>{opened}"), opening=given)) == 0.0
    assert [length(said(" ".join("x" * n)), target=4) for n in (0, 2, 4, 6, 8, 99)] == [
        0.0,
        0.5,
        1.0,
        0.5,
        0.0,
        0.0,
    ]
    assert length(said("abcd"), target=4, unit="characters") == 1.0
    long = [Sample("", "", num_tokens=n) for n in (0, 12, 14, 16, 99)]
    assert [overlong(s, max_length=16, buffer=4) for s in long] == [0.0, 0.0, -0.5, -1.0, -1.0]
    assert [ended(Sample("", "", ended=flag)) for flag in (True, False)] == [1.0, 0.0]


def scored(*specs: RewardSpec, samples: list[Sample], **options: Any) -> Scored:
    return Scorer(specs, **options)(samples)


def test_weighted_sums() -> None:
    specs = [
        RewardSpec("exact_match", 2.0),
        RewardSpec("regex", 0.5, {"pattern": "7"}),
        RewardSpec("regex", -1.0, {"pattern": "x"}),
    ]
    found = scored(*specs, samples=[said("72"), said("7"), said("x")])
    assert found.total == [2.5, 0.5, -1.0]
    assert found.parts == {"exact_match": [1, 0, 0], "regex": [1, 1, 0], "regex_2": [0, 0, 1]}
    assert scored(*specs, samples=[]).total == []


USER = """
import time
from dataclasses import replace
def lengths(completions, answer, factor=1):
    return [factor * (len(c) - len(a)) for c, a in zip(completions, answer)]
def everything(**columns):
    return [len(columns["prompts"][i]) + columns["level"][i] for i in range(len(columns["completions"]))]
def raises(completions, **_):
    return [1 / (c != "bad") for c in completions]
def odd(completions, **_):
    table = {"nan": float("nan"), "inf": float("inf"), "none": None, "text": "1.0", "list": [1]}
    return [table.get(c, 1) for c in completions]
def short(completions, **_):
    return [1.0]
def hangs(completions, **_):
    while "forever" in completions:
        pass
    return [1.0 for _ in completions]
def sleeps(completions, **_):
    time.sleep(60)
def tested(completions, tests, **columns):
    return [None if test is None else len(columns["hints"]) for test in tests]
def by_completion(completions, **_):
    return {c: 1.0 for c in completions}
def unordered(completions, **_):
    return {1.0, 2.0}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_rewards_for_a_test.py").write_text(USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rewards_for_a_test", raising=False)
    return "my_rewards_for_a_test"


def test_functions_of_the_users_own(mine: str) -> None:
    samples = [said("abc", level=1), said("a", "b", level=2)]
    assert scored(RewardSpec(f"{mine}:lengths", 1.0, {"factor": 2}), samples=samples).total == [2.0, 0.0]
    assert scored(RewardSpec(f"{mine}:everything"), samples=samples).total == [10.0, 11.0]
    with pytest.raises(ConfigError, match="has no 'length'"):
        Scorer([RewardSpec(f"{mine}:length")])
    with pytest.raises(ConfigError, match="did you mean 'numeric'"):
        Scorer([RewardSpec("numerc")])


def test_a_batch_of_rows_without_a_column_of_other_rows(mine: str) -> None:
    """Rows of several data sets meet in batches by chance: a column is always given, as in ``datasets``."""
    scorer = Scorer([RewardSpec(f"{mine}:tested"), RewardSpec("ended")])
    tables = [Rows({"answer": "1", "prompt": "q"}), Rows({"tests": "t"}, {"hints": "h"})]
    setup = SimpleNamespace(scorer=scorer, world=Alone())
    for table in tables:
        scorer.columns |= RolloutSetup.columns_of(cast(Any, setup), cast(Any, table))
    assert scorer.columns == {"answer", "tests", "hints"}
    assert scorer([said("a"), said("b")]).total == [1.0, 1.0]
    assert scorer([said("a", tests="t"), said("b")]).total == [3.0, 1.0]


class Rows(tuple[dict[str, str], ...]):
    def __new__(cls, *rows: dict[str, str]) -> Rows:
        return super().__new__(cls, rows)

    def facts(self, document: int) -> dict[str, str]:
        return self[document]


class Alone:
    rank, world_size = 0, 1

    def all_gather_json(self, mine: Any) -> list[Any]:
        return [mine]


@pytest.mark.parametrize("name", ["by_completion", "unordered"])
def test_no_list_of_numbers(mine: str, name: str) -> None:
    """The keys of a dict are numbers, too, and a set has lost its order."""
    with pytest.raises(PacelineError, match="in place of a list"):
        scored(RewardSpec(f"{mine}:{name}"), samples=[said("a"), said("b")])


def test_a_function_that_raises_is_named_with_the_sample(mine: str) -> None:
    samples = [said("good"), said("bad"), said("good")]
    spec = RewardSpec(f"{mine}:raises")
    with pytest.raises(PacelineError) as caught:
        scored(spec, RewardSpec("ended"), samples=samples)
    (finding,) = caught.value.diagnostics
    assert finding.code == "rewards.failed" and "ZeroDivisionError" in finding.found
    assert finding.evidence["completion"] == "bad" and "raises" in finding.what
    zero = scored(spec, RewardSpec("ended"), samples=samples, on_error="zero")
    assert zero.total == [2.0, 1.0, 2.0] and len(zero.problems) == 1
    skip = scored(spec, RewardSpec("ended"), samples=samples, on_error="skip")
    assert [math.isnan(x) for x in skip.total] == [False, True, False]


def test_what_is_no_number_is_a_failure_and_none_is_no_judgement(mine: str) -> None:
    samples = [said(word) for word in ("ok", "nan", "inf", "none", "text", "list")]
    found = scored(RewardSpec(f"{mine}:odd"), RewardSpec("ended", 0.5), samples=samples, on_error="zero")
    assert found.total == [1.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert [p.evidence["completion"] for p in found.problems] == ["nan", "inf", "text", "list"]
    alone = scored(RewardSpec(f"{mine}:odd"), samples=samples[3:4])
    assert math.isnan(alone.total[0]) and not alone.problems  # nobody judged it
    with pytest.raises(PacelineError, match="1 values for 2 samples"):
        scored(RewardSpec(f"{mine}:short"), samples=samples[:2])


def test_a_function_that_hangs_is_ended(mine: str) -> None:
    begun = time.monotonic()
    samples = [said("fine"), said("forever"), said("fine")]
    found = scored(RewardSpec(f"{mine}:hangs"), samples=samples, on_error="zero", timeout_seconds=0.2)
    assert found.total == [1.0, 0.0, 1.0]
    assert "did not answer within 0.2 s" in found.problems[0].found
    many = scored(
        RewardSpec(f"{mine}:sleeps"), samples=[said("x")] * 50, on_error="skip", timeout_seconds=0.1
    )
    assert all(map(math.isnan, many.total)) and "not called" in many.problems[-1].found
    pattern = scored(
        RewardSpec("regex", 1.0, {"pattern": "(a+)+$"}),
        samples=[said("a" * 60 + "b")],
        on_error="zero",
        timeout_seconds=0.2,
    )
    assert pattern.total == [0.0] and pattern.problems
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("spec", "code_name"),
    [
        (RewardSpec("regex"), "rewards.options"),
        (RewardSpec("regex", 1.0, {"pattern": "("}), "rewards.options"),
        (RewardSpec("exact_match", 1.0, {"pattern": "x"}), "rewards.options"),
        (RewardSpec("code"), "rewards.code_off"),
        (RewardSpec("nobody"), "reward.unknown"),
    ],
)
def test_wrong_specifications(spec: RewardSpec, code_name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Scorer([spec])
    assert caught.value.diagnostics[0].code == code_name


def test_every_name_can_be_loaded() -> None:
    assert all(callable(REWARDS.load(name)) for name in REWARDS.names())


def isolated() -> bool:
    try:
        code_reward.check_isolation()
    except ConfigError as error:
        # the defined answer of a machine that cannot
        assert error.diagnostics[0].code == "rewards.no_isolation"
        return False
    return True


def test_code_runs_in_a_child_that_is_shut_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isolated():
        with pytest.raises(ConfigError, match="cannot isolate"):
            Scorer([RewardSpec("code")], allow_code=True)
        return
    monkeypatch.setenv("A_SECRET", "42")
    reward = Scorer([RewardSpec("code", 1.0, {"seconds": 2})], allow_code=True)
    programs = {
        "Here:\n```python\ndef f(x):\n    return x * x\n```\n": 1.0,
        "def f(x): return x + 1": 0.0,
        "import os\nassert 'A_SECRET' in os.environ\ndef f(x): return 4": 0.0,
        "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)": 0.0,
        "import socket\nassert socket.if_nameindex() == [(1, 'lo')]\ndef f(x): return 4": 1.0,
        "x = bytearray(1 << 30)\ndef f(x): return 4": 0.0,
        "open('big', 'wb').write(b'x' * (2 << 20))\ndef f(x): return 4": 0.0,
        "raise SystemExit(97)": 0.0,
        "while True: pass": 0.0,
        "": 0.0,
    }
    found = reward([said(text, tests="assert f(2) == 4") for text in programs])
    assert dict(zip(programs, found.total, strict=True)) == programs
    with pytest.raises(PacelineError, match="KeyError"):
        reward([said("pass")])  # no tests


def test_what_a_reward_model_says_is_one_of_the_rewards() -> None:
    model = RewardSpec("model", 0.5, {"model": "outputs/reward"})
    samples = [said("#### 72"), said("no")]
    scored = Scorer([RewardSpec("numeric"), model])(samples, [3.0, -1.0])
    assert scored.total == [2.5, -0.5] and scored.parts == {"numeric": [1.0, 0.0], "model": [3.0, -1.0]}
    with pytest.raises(PacelineError, match=r"rewards.failed[\s\S]*'model'[\s\S]*gave nan"):
        Scorer([model])(samples, [3.0, math.nan])
    left = Scorer([model, RewardSpec("numeric")], on_error="skip")(samples, [math.inf, 0.0])
    assert (
        math.isnan(left.total[0])
        and left.total[1] == 0.0
        and [p.code for p in left.problems] == ["rewards.failed"]
    )
    assert Scorer([model])([]).total == []
