"""Transcripts in one text, as hh-rlhf publishes them: paragraphs that begin with Human: or Assistant:."""

from __future__ import annotations

import re

from paceline.data.rows.messages import Message

_ROLES = {"Human": "user", "Assistant": "assistant"}
_MARK = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")


def turns_in(text: str) -> list[Message]:
    """Return the turns of a transcript without the blanks around each; [] for another text.

    It begins with Human: and has a paragraph with Assistant:. An empty one at the end opens the answer, and
    is no turn.
    """
    marks = list(_MARK.finditer(text))
    roles = [_ROLES[mark.group(1)] for mark in marks]
    if not marks or marks[0].start() or roles[0] != "user" or "assistant" not in roles:
        return []
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    turns: list[Message] = [
        {"role": role, "content": text[mark.end() : end].strip()}
        for role, mark, end in zip(roles, marks, ends, strict=True)
    ]
    return turns[:-1] if roles[-1] == "assistant" and not turns[-1]["content"] else turns


def is_open(turns: list[Message]) -> bool:
    """Whether a transcript asks for an answer."""
    return bool(turns) and turns[-1]["role"] == "user"
