"""Other programs' rewards and ours in their place: equal scores of generated answers, which they gave.

``tests/peers/inside/score_trl.py`` and ``score_others.py`` recorded them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.algorithms.rewards.builtin import Sample
from paceline.algorithms.rewards.scoring import RewardSpec, Scorer
from paceline.config.import_export.programs import ms_swift
from paceline.config.import_export.programs.trl import REWARDS, of_open_r1
from paceline.config.import_export.targets import trl_rewards
from paceline.core.json_types import JsonObject, as_object

HERE = Path(__file__).parent / "recorded"
RECORDED = json.loads((HERE / "trl_rewards.json").read_text(encoding="utf-8"))


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


OTHERS = [
    *(("swift", name, [reward]) for name, reward in ms_swift.REWARDS.items()),
    *(("open_r1", name, of_open_r1(name)) for name in ("accuracy", "format", "tag_count", "code_format")),
]


@pytest.mark.parametrize(("program", "name", "rewards"), OTHERS)
def test_the_scores_are_the_other_programs(program: str, name: str, rewards: list[JsonObject]) -> None:
    rows = json.loads((HERE / f"{program}_rewards.json").read_text(encoding="utf-8"))
    share = 1 / len(rewards)
    specs = [RewardSpec(str(one["name"]), weight=share, options=as_object(one["options"])) for one in rewards]
    found = Scorer(specs)([Sample("q", row["answer"], {"answer": row["solution"]}) for row in rows])
    expected = [math.nan if row["scores"][name] is None else row["scores"][name] for row in rows]
    assert found.problems == () and found.total == pytest.approx(expected, nan_ok=True)
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
