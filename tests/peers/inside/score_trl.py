r"""Score generated answers by TRL's rewards: ``score_trl.py RECORDED``, where trl and math-verify are.

RECORDED gets rows of ``answer``, ``solution``, ``tokens`` and TRL's ``scores`` by name.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

SOLUTIONS = (
    r"$\frac{1}{3}$",
    "$12$",
    r"\boxed{x^2+1}",
    "no mathematics",
    r"$\{1, 2\}$",
    "0.5",
    r"$\sqrt{8}$",
)
ANSWERS = (
    *(r"\boxed{\frac{1}{3}}", r"The answer is $12$.", "12", r"$\frac{2}{4}$", r"\boxed{0.5}", r"$2\sqrt{2}$"),
    *(
        r"\boxed{1+x^2}",
        r"\boxed{11}, no: \boxed{12}",
        "I do not know.",
        "",
        r"$\{2,1\}$",
        r"\boxed{12 \text{ cm}}",
    ),
)
FRAMES = (
    *(
        "{}",
        "<think>so</think>{}",
        "<think>\nso\n</think>\n{}\n",
        "<think>a<think>b</think>{}",
        " <think>a</think>{}",
    ),
    *("{}</think>", "<think>{}", "<think>{}</think> {}"),
)


def main() -> None:
    """Write the scores of 80 answers drawn from answers, frames and solutions."""
    from trl.rewards import (
        accuracy_reward,
        get_soft_overlong_punishment,
        reasoning_accuracy_reward,
        think_format_reward,
    )

    draw = random.Random(0)
    functions = {
        "accuracy_reward": accuracy_reward,
        "reasoning_accuracy_reward": reasoning_accuracy_reward,
        "think_format_reward": think_format_reward,
        "get_soft_overlong_punishment": get_soft_overlong_punishment(1280, 256),
    }
    rows = []
    for _ in range(80):
        answer = draw.choice(FRAMES).replace("{}", draw.choice(ANSWERS))
        solution, tokens = draw.choice(SOLUTIONS), draw.choice((3, 1023, 1024, 1025, 1200, 1280, 1281, 2000))
        given = {
            "completions": [[{"role": "assistant", "content": answer}]],
            "solution": [solution],
            "completion_ids": [[0] * tokens],
        }
        scores = {name: function(**given)[0] for name, function in functions.items()}
        rows.append({"answer": answer, "solution": solution, "tokens": tokens, "scores": scores})
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    Path(sys.argv[1]).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
