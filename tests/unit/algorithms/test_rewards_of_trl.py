"""TRL's reward functions and ours in their place: equal scores of generated answers, which TRL itself gave.

``tests/peers/inside/score_trl.py`` recorded them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.algorithms.rewards.builtin import Sample
from paceline.algorithms.rewards.scoring import RewardSpec, Scorer
from paceline.config.import_export.programs.trl import REWARDS
from paceline.config.import_export.targets import trl_rewards
from paceline.core.json_types import as_object

RECORDED = json.loads((Path(__file__).parent / "recorded" / "trl_rewards.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", REWARDS)
def test_the_scores_are_trls(name: str) -> None:
    ours = RewardSpec(str(REWARDS[name]["name"]), options=as_object(REWARDS[name]["options"]))
    samples = [
        Sample("q", row["answer"], {"answer": row["solution"]}, num_tokens=row["tokens"]) for row in RECORDED
    ]
    found = Scorer([ours])(samples)
    assert found.problems == ()
    expected = [math.nan if row["scores"][name] is None else row["scores"][name] for row in RECORDED]
    assert found.total == pytest.approx(expected, nan_ok=True)
    assert len({score for score in expected if not math.isnan(score)}) > 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("exact_match", {"ignore_case": True}),
        ("regex", {"pattern": r"\d+$"}),
        ("overlong", {"max_length": 1280, "buffer": 256}),
        ("length", {"target": 1200}),
        ("length", {"target": 20, "unit": "characters"}),
    ],
)
def test_an_exported_reward_scores_as_ours(name: str, options: dict[str, object]) -> None:
    """What `paceline config export --to trl` writes beside its file, in the form that TRL calls."""
    rows = [
        SimpleNamespace(**{**row, "solution": row["answer"].upper() if number % 2 else "another"})
        for number, row in enumerate(RECORDED)
    ]
    samples = [Sample("q", r.answer, {"answer": r.solution}, num_tokens=r.tokens) for r in rows]
    theirs = getattr(trl_rewards, name)(**options)(
        completions=[[{"role": "assistant", "content": r.answer}] for r in rows],
        completion_ids=[[0] * r.tokens for r in rows],
        answer=[r.solution for r in rows],
        prompts=[],
    )
    ours = Scorer([RewardSpec(name, options=options)])(samples).total  # type: ignore[arg-type]
    assert theirs == ours and len(set(ours)) > 1
