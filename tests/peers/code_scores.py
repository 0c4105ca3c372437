"""Answers with programs, scored by open-r1's ``code`` and by ours: how many have another score."""

from __future__ import annotations

from pathlib import Path

import ours
from ask import ask

from paceline.algorithms.rewards.builtin import Sample
from paceline.algorithms.rewards.code_reward import CodeReward
from paceline.config.import_export.sizes import shape_of

_KEYS = {"model_name_or_path": "base", "dataset_name": "rows", "reward_funcs": ["code"]}
_TESTS = [
    {"input": "1 2\n", "output": "3\nodd\n"},
    {"input": "2 2\n", "output": "4\neven\n"},
    {"input": "5 5\n", "output": "10\neven\n"},
]
_SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
_WORD = "print('odd' if (a + b) % 2 else 'even')\n"
PROGRAMS = (
    _SUM + _WORD,
    _SUM + "print('odd')\n",
    _SUM,
    _SUM + _WORD + "print('done')\n",
    _SUM.replace("a + b", "a - b") + _WORD,
    _SUM.replace("(a + b)", "(a + b, '')") + _WORD,
    _SUM + _WORD + "raise SystemExit(1)\n",
    "raise ValueError\n",
    _SUM + _WORD + "import time\nif a == 5:\n    time.sleep(30)\n",
)
ANSWERS = [f"<answer>\n```python\n{program}```\n</answer>" for program in PROGRAMS]
ANSWERS += [PROGRAMS[0], f"```py\n{PROGRAMS[0]}```", f"```python\nx\n```\n```python\n{PROGRAMS[0]}```"]


def compared(folder: Path) -> tuple[str, str]:
    """Return the difference that an import of ``code`` names, and how many scores differ."""
    theirs = ask("trl", "scores", [{"answer": answer, "tests": _TESTS} for answer in ANSWERS], folder)
    info = {"language": "python", "test_cases": _TESTS}
    reward = CodeReward(seconds=5, tests="verification_info", partial=True)
    mine = [reward.judge(Sample("", answer, {"verification_info": info})) for answer in ANSWERS]
    print(f"code: theirs {theirs}, ours {mine}", flush=True)
    said = ours.imported("trl", ("grpo", _KEYS)).said["reward_funcs"]
    others = sum(abs(one - other) > 1e-9 for one, other in zip(theirs, mine, strict=True))
    return shape_of("TRL", "reward_funcs", said), f"{others} of {len(mine)} answers have another score"
