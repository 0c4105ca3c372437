"""Metrics of answers: their values, missing packages, and functions that are slow or end a process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.config.registries.evaluation_metrics import ANSWER_METRICS, written_out
from paceline.core.errors import ConfigError
from paceline.evaluation.scores import metrics
from paceline.evaluation.scores.metrics import METRICS, check_metrics, own_metric, pass_at, passes_of, score

PAIRS = [
    ("exact_match", " 4 ", "4", 1.0),
    ("exact_match", "four", "4", 0.0),
    ("numeric", "so it is 1,234.0", "#### 1234", 1.0),
    ("numeric", "no number", "5", 0.0),
    ("f1", "The cat sat.", "a cat sat down", 0.8),
    ("f1", "", "a", 1.0),  # both are empty without the article
    ("f1", "dog", "cat", 0.0),
]


@pytest.mark.parametrize(("name", "answer", "expected", "value"), PAIRS)
def test_values(name: str, answer: str, expected: str, value: float) -> None:
    function = METRICS[name].per_answer
    assert function is not None and function(answer, expected) == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "answer", "expected", "value"),
    [
        ("rouge1", "the cat sat", "the cat lay", 2 / 3),
        ("rouge2", "the cat sat", "the cat lay", 1 / 2),
        ("rougeL", "cat the sat", "the cat sat", 2 / 3),
        ("math_verify", r"$\frac{1}{2}$", "$0.5$", 1.0),
        ("math_verify", "$3$", "$4$", 0.0),
    ],
)
def test_values_of_packages(name: str, answer: str, expected: str, value: float) -> None:
    pytest.importorskip(METRICS[name].package)
    function = METRICS[name].per_answer
    assert function is not None and function(answer, expected) == pytest.approx(value)


def test_bleu_is_of_all_answers_together() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    answers, expected = ["the cat sat on the mat", "a dog"], ["the cat sat on a mat", "a dog ran"]
    function = METRICS["bleu"].corpus
    assert function is not None
    assert function(answers, expected) == sacrebleu.corpus_bleu(answers, [expected]).score > 0


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_answer() -> None:
    from itertools import combinations

    for correct in range(5):
        right = [n < correct for n in range(4)]
        subsets = list(combinations(right, 2))
        assert pass_at(2, 4, correct) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert passes_of("pass@3:numeric") == (3, "numeric") and passes_of("pass@0") is None


def test_groups_are_written_out() -> None:
    assert written_out(["rouge", "f1", "rouge1"]) == ("rouge1", "rouge2", "rougeL", "f1")


@pytest.mark.parametrize(
    ("names", "code", "words"),
    [
        (["exakt"], "evaluation.metric", "exact_match"),
        (["pass@4"], "evaluation.metric", "--samples 4"),
        (["pass@1:bleu"], "evaluation.metric", "all answers together"),
        (["pass@1:nothing"], "evaluation.metric", "no metric of this name"),
        (["no_such_module:f"], "core.target_module", "no_such_module"),
        (["./mine.py:f"], "core.target_module", "mine:f, with the file's folder"),
        (["mine.py:f"], "core.target_module", "mine:f, with the file's folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(names: list[str], code: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_metrics(names, 1)
    assert refused.value.diagnostics[0].code == code and words in str(refused.value)


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refused:
        check_metrics(["rouge", "bleu", "math_verify", "f1"], 1)
    hints = " ".join(one.hint for one in refused.value.diagnostics)
    assert len(refused.value.diagnostics) == 5
    assert all(f"pip install {name}" in hints for name in ("rouge-score", "sacrebleu", "math-verify"))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a user's own: slow at ``wait``, raises at ``raise``, ends its process at ``end``."""
    text = (
        "import os, time\n"
        "def judge(answer, expected):\n"
        "    print('a metric may print')\n"
        "    if answer == 'wait': time.sleep(600)\n"
        "    if answer == 'raise': raise ValueError('why')\n"
        "    if answer == 'end': os._exit(3)\n"
        "    if answer == 'nan': return float('nan')\n"
        "    return answer == expected\n"
    )
    (tmp_path / "own_metric_of_a_test.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "own_metric_of_a_test:judge"


def test_a_slow_metric_and_one_that_ends_cost_their_own_rows_only(own: str) -> None:
    given = ["a", "wait", "a", "raise", "end", "b", "nan"]
    found = score(own, [(one, "a") for one in given], seconds=2.0)
    assert found.values == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert [at for at, _ in found.failed] == [1, 3, 4, 6]
    reasons = dict(found.failed)
    assert "within 2 s" in reasons[1] and "ValueError: why" in reasons[3] and "ended" in reasons[4]
    assert "nan" in reasons[6]
    warning = found.warning(own, [f"row {n + 1}" for n in range(7)])
    assert warning is not None and warning.where == "row 2" and "4 of 7" in warning.what
    assert own.partition(":")[0] not in sys.modules  # it ran in a child


def test_the_config_knows_every_metric_by_its_name() -> None:
    assert tuple(METRICS) == ANSWER_METRICS


def test_a_coroutine_function_is_no_metric() -> None:
    with pytest.raises(ConfigError, match="async def"):
        own_metric("asyncio:open_connection")
