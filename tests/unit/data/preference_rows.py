"""Preference rows as people publish them, made by seed, each with how TRL is asked about it."""

from __future__ import annotations

import json
import random
from typing import Any

Row = dict[str, Any]
_WORDS = (
    "four",
    "fortytwo",
    "Yes.",
    "no",
    "numbers?",
    "Paris",
    "Parisian",
    "I'm",
    "I'll",
    "a\nb",
    "(x)",
    "é",
    "7",
)


class Writer:
    """Draw rows: (the row as published, the row as TRL knows it). They differ in names of keys only."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def row(self) -> tuple[Row, Row]:
        """Return a row and what TRL is asked."""
        forms = (
            self._texts,
            self._turns,
            self._alone,
            self._repeated,
            self._repeated,
            self._hh,
            self._hh,
            self._odd,
        )
        row = self.draw.choice(forms)()
        asked = json.loads(json.dumps(row))
        if self.draw.random() < 0.4 and "prompt" in row and "prompt_is_turns" not in row:
            row |= self.draw.choice(
                ({"question": "another?"}, {"instruction": "Do."}, {"query": row["prompt"]})
            )
        if self.draw.random() < 0.5 and isinstance(row["chosen"], list):
            whole = (
                row["chosen"] if row["chosen"][0]["role"] != "assistant" else [self.user(), *row["chosen"]]
            )
            row |= {self.draw.choice(("messages", "conversations")): whole}
        return self._respelt(row), asked

    def text(self, most: int = 6) -> str:
        return " ".join(self.draw.choice(_WORDS) for _ in range(self.draw.randint(1, most)))

    def user(self) -> Row:
        return {"role": "user", "content": self.text()}

    def assistant(self) -> Row:
        return {"role": "assistant", "content": self.text(2)}

    def _history(self) -> list[Row]:
        system = [{"role": "system", "content": self.text()}] if self.draw.random() < 0.3 else []
        before = [turn for _ in range(self.draw.randint(0, 2)) for turn in (self.user(), self.assistant())]
        return [*system, *before, self.user()]

    def _texts(self) -> Row:
        return {"prompt": self.text(), "chosen": self.text(2), "rejected": self.text(2)}

    def _turns(self) -> Row:
        answers = {"chosen": [self.assistant()], "rejected": [self.assistant()]}
        if self.draw.random() < 0.4:
            answers = {name: [*turns, self.user(), self.assistant()] for name, turns in answers.items()}
        return {"prompt": self._history(), **answers}

    def _alone(self) -> Row:
        history = self._history()
        row = {"chosen": [*history, self.assistant()], "rejected": [*history, self.assistant()]}
        if self.draw.random() < 0.4:
            row["rejected"] = [*row["rejected"], self.user(), self.assistant()]
        return row

    def _repeated(self) -> Row:
        row = self._alone()
        users = [turn for turn in row["chosen"] if turn["role"] == "user"]
        return {"prompt": self.draw.choice((users[0], users[0], users[-1]))["content"], **row}

    def _hh(self) -> Row:
        human, bot = self.draw.choice((("\n\nHuman: ", "\n\nAssistant: "), ("Q: ", "\nA:\n"), ("", "  ")))
        begin = "".join(f"{human}{self.text()}{bot}{self.text(3)}" for _ in range(self.draw.randint(0, 2)))
        begin += f"{human}{self.text()}{bot}"
        common = self.text(2) if self.draw.random() < 0.5 else ""
        return {
            name: f"{begin}{common}{self.draw.choice(('', ' '))}{self.text(2)}"
            for name in ("chosen", "rejected")
        }

    def _odd(self) -> Row:
        one, other = self._alone(), self._alone()
        return self.draw.choice(
            (
                {"chosen": one["chosen"], "rejected": one["chosen"]},
                {"chosen": one["chosen"], "rejected": other["rejected"]},
                {"prompt": "never asked", **one},
                {"chosen": "same text", "rejected": "same text"},
                {"chosen": "nothing", "rejected": "alike"},
                {
                    "prompt": [self.user(), self.assistant()],
                    "chosen": [self.assistant()],
                    "rejected": [self.assistant()],
                },
            )
        )

    def _respelt(self, row: Row) -> Row:
        """Return the row with ShareGPT's keys or roles, or with turns as JSON text."""
        kind = self.draw.choice(("", "", "keys", "roles", "text"))
        names = {"user": "human", "assistant": "gpt"}
        for name, turns in row.items():
            if not isinstance(turns, list):
                continue
            if kind in ("keys", "roles"):
                role, text = ("from", "value") if kind == "keys" else ("role", "content")
                row[name] = [{role: names.get(t["role"], t["role"]), text: t["content"]} for t in turns]
            elif kind == "text":
                row[name] = json.dumps(turns)
        return row
