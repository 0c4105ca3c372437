#!/usr/bin/env python
"""Write which tokens LLaMA-Factory 0.9.5 keeps of rows that are longer than ``cutoff_len``.

    /opt/envs/llamafactory/bin/python tests/peers/llamafactory_truncation.py OUT

Its processors run on turns of given lengths, whose tokens are their own positions. OUT holds a list of
{turns: [[question, answer] lengths], limit, last (mask_history), end (efficient_eos), kept, loss}; of a pair
{prompt, answers, limit, kept}.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

END = -1


class _Template:
    """Stands for a template: its turns are ready tokens."""

    preserve_thinking = True

    def __init__(self, pairs: list[tuple[list[int], list[int]]], end: bool) -> None:
        self.pairs, self.efficient_eos = pairs, end
        self.mm_plugin = SimpleNamespace(
            process_messages=lambda messages, *_: messages,
            process_token_ids=lambda ids, labels, *_: (ids, labels),
        )

    def encode_multiturn(self, *_: object) -> list[tuple[list[int], list[int]]]:
        return [(list(question), list(answer)) for question, answer in self.pairs]

    def encode_oneturn(self, _: object, messages: list[int], *__: object) -> tuple[list[int], list[int]]:
        question, answer = self.pairs[messages[-1]]
        return list(question), list(answer)


def _rows(prompt: list[int], answers: list[int]) -> dict[str, list[Any]]:
    """Return one row as its processors take rows; the template has the tokens."""
    names = ("_system", "_tools", "_images", "_videos", "_audios")
    return {"_prompt": [prompt], "_response": [answers], **{name: [None] for name in names}}


def main() -> None:
    """Draw lengths, and ask the processors."""
    from llamafactory.data.processor.pairwise import PairwiseDatasetProcessor
    from llamafactory.data.processor.supervised import SupervisedDatasetProcessor

    draw = random.Random(5)
    found: list[dict[str, Any]] = []
    for _ in range(120):
        lengths = [(draw.randint(1, 40), draw.randint(1, 40)) for _ in range(draw.randint(1, 3))]
        end, last, limit = draw.random() < 0.3, draw.random() < 0.4, draw.randint(8, 90)
        edges = list(accumulate((n for pair in lengths for n in pair), initial=0))
        pairs = [
            (list(range(a, b)), list(range(b, c)))
            for a, b, c in zip(edges[::2], edges[1::2], edges[2::2], strict=False)
        ]
        data = SimpleNamespace(cutoff_len=limit, mask_history=last, train_on_prompt=False)
        tokenizer = SimpleNamespace(eos_token_id=END)
        made = SupervisedDatasetProcessor(_Template(pairs, end), tokenizer, None, data)
        rows = made.preprocess_dataset(_rows([0], [1]))
        ids, labels = rows["input_ids"][0], rows["labels"][0]
        # with efficient_eos the first token of a later question is the end of the answer before it
        learnt = [i for i, label in zip(ids, labels, strict=True) if label == i and i != END]
        found.append(
            {"turns": lengths, "limit": limit, "last": last, "end": end, "kept": ids, "loss": learnt}
        )
    for _ in range(60):
        prompt, answers, limit = (
            draw.randint(1, 40),
            [draw.randint(1, 40) for _ in range(2)],
            draw.randint(8, 60),
        )
        pairs = [(list(range(prompt)), list(range(prompt, prompt + n))) for n in answers]
        data = SimpleNamespace(cutoff_len=limit)
        made = PairwiseDatasetProcessor(_Template(pairs, False), None, None, data)
        rows = made.preprocess_dataset(_rows([0], [0, 1]))
        chosen, rejected = rows["chosen_input_ids"][0], rows["rejected_input_ids"][0]
        found.append({"prompt": prompt, "answers": answers, "limit": limit, "kept": [chosen, rejected]})
    lines = (json.dumps(each) for each in found)
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
