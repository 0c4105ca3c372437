r"""Score generated answers by rewards of other programs, where math-verify is.

``score_others.py swift RECORDED`` in ms-swift's environment, ``score_others.py open_r1 RECORDED CHECKOUT``
with a checkout of open-r1. RECORDED gets rows of ``answer``, ``solution`` and ``scores`` by name.
"""

from __future__ import annotations

import json
import random
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from score_trl import ANSWERS, FRAMES, SOLUTIONS

MORE = (
    *(
        "<answer>{}</answer>",
        "<think>so</think> <answer>{}</answer>",
        "<answer>{}",
        "12 <answer> {} </answer> 3",
    ),
    *(
        "<think>\nso\n</think>\n<answer>\n{}\n</answer>",
        "<think>\nso\n</think>\n<answer>\n{}\n</answer>\nmore",
    ),
    *("<think>\na\n</think>\n<think>\nb\n</think>\n<answer>\n{}\n</answer>", "x<think>\n{}\n</think>\n"),
    *("<think>\nso\n</think>\n<answer>\n```python\n{}\n```\n</answer>",),
    *("<think>so</think> Action: a Action Input: {}", "<think>so</think>\nAction: {}\n"),
)
TAGGED = ("<answer>12</answer>", r"so <answer>$\frac{1}{3}$</answer>", "$12$ and $13$", "1/3")


def main() -> None:
    """Write the scores of 200 answers drawn from answers, frames and solutions."""
    name, recorded, *more = sys.argv[1:]
    functions = _swift() if name == "swift" else _open_r1(Path(more[0]))
    draw, rows = random.Random(0), []
    for _ in range(200):
        answer = draw.choice((*FRAMES, *MORE)).replace("{}", draw.choice(ANSWERS))
        solution = draw.choice((*SOLUTIONS, *TAGGED))
        scores = {named: score(answer, solution) for named, score in functions.items()}
        rows.append({"answer": answer, "solution": solution, "scores": scores})
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    Path(recorded).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _swift() -> Mapping[str, Callable[[str, str], Any]]:
    from swift.rewards.orm import orms

    def scored(name: str) -> Callable[[str, str], Any]:
        function = orms[name]()
        return lambda answer, solution: function(completions=[answer], solution=[solution])[0]

    return {name: scored(name) for name in ("accuracy", "format", "react_format")}


def rewards_of(checkout: Path) -> None:
    """Make ``open_r1.rewards`` importable; what it imports of services that run programs is left out."""
    package = types.ModuleType("open_r1")
    package.__path__ = [str(checkout / "src/open_r1")]
    sys.modules["open_r1"] = package
    for name, names in {
        "open_r1.utils": (),
        "open_r1.utils.code_providers": ("get_provider",),
        "open_r1.utils.competitive_programming": (
            *("SubtaskResult", "add_includes", "get_morph_client_from_env", "get_piston_client_from_env"),
            *("patch_code", "score_submission", "score_subtask"),
        ),
    }.items():
        module: Any = types.ModuleType(name)
        module.__path__ = []
        for each in names:
            setattr(module, each, None)
        sys.modules[name] = module


def _open_r1(checkout: Path) -> Mapping[str, Callable[[str, str], Any]]:
    rewards_of(checkout)
    from open_r1 import rewards

    functions = {
        "accuracy": rewards.accuracy_reward,
        "format": rewards.format_reward,
        "tag_count": rewards.tag_count_reward,
        "code_format": rewards.get_code_format_reward(),
    }

    def scored(function: Callable[..., Any]) -> Callable[[str, str], Any]:
        return lambda answer, solution: function([[{"content": answer}]], solution=[solution])[0]

    return {name: scored(function) for name, function in functions.items()}


if __name__ == "__main__":
    main()
