"""Truncate rows that are longer than ``data.max_length``: at their end, their start, or in each turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.data.chat_template.encode import Encoded


def truncated(documents: Sequence[Encoded], limit: int, truncation: str) -> list[Encoded]:
    """Return a row's documents, each truncated to ``limit`` tokens (``data.truncation``)."""
    if all(len(document.input_ids) <= limit for document in documents):
        return list(documents)
    return [
        document._replace(
            input_ids=document.input_ids[kept],
            labelled=document.labelled[kept],
            second=int(np.searchsorted(kept, document.second)) if document.second else 0,
        )
        for document, kept in zip(documents, kept_tokens(documents, limit, truncation), strict=True)
    ]


def kept_tokens(documents: Sequence[Encoded], limit: int, truncation: str) -> list[NDArray[np.int64]]:
    """Return the positions of the tokens that a row's documents keep, int64 [n] each."""
    every = [np.arange(len(document.input_ids)) for document in documents]
    if truncation != "ratio" or max(map(len, every), default=0) <= limit:
        return [tokens[-limit:] if truncation == "start" else tokens[:limit] for tokens in every]
    turns = [_turns(document) for document in documents]
    if len(documents) == 1:
        return [_by_turns(documents[0], turns[0], limit)]
    return _as_pair([(each[-1][1], len(tokens)) for each, tokens in zip(turns, every, strict=True)], limit)


def _as_pair(documents: Sequence[tuple[int, int]], limit: int) -> list[NDArray[np.int64]]:
    """Truncate documents of (prompt, length) equally: their shared prompt, and the answers by the longest."""
    longest = max(length - prompt for prompt, length in documents)
    source, target = _shares(documents[0][0], longest, limit)
    return [
        np.r_[0 : min(source, prompt), prompt : min(prompt + target, length)] for prompt, length in documents
    ]


def _by_turns(document: Encoded, turns: list[tuple[int, int, int]], limit: int) -> NDArray[np.int64]:
    """Truncate the end of each question and of its answer, as LLaMA-Factory 0.9.5 does (``infer_seqlen``).

    Go through the turns while tokens are left, backwards if only the last turn has loss. Keep an added end
    token.
    """
    left, kept = limit - document.end_added, list[NDArray[np.int64]]()
    backwards = bool(document.answers) and not document.labelled[: document.answers[-1][0]].any()
    for start, answer, end in reversed(turns) if backwards else turns:
        if left <= 0:
            break
        source, target = _shares(answer - start, end - answer, left)
        left -= source + target
        taken = np.r_[start : start + source, answer : answer + target]
        kept = [taken, *kept] if backwards else [*kept, taken]
    added = np.arange(len(document.input_ids) - document.end_added, len(document.input_ids))
    return np.concatenate([*kept, added])


def _turns(document: Encoded) -> list[tuple[int, int, int]]:
    """Return (start, start of the answer, end) of each turn; text after the last answer belongs to the last
    turn."""
    length = len(document.input_ids) - document.end_added
    runs = list(document.answers)
    if not runs:
        edges = np.flatnonzero(np.diff(np.r_[0, document.labelled[:length].astype(np.int8), 0]))
        runs = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    if not runs:
        return [(0, 0, length)]
    ends = [*(end for _, end in runs[:-1]), length]
    starts = [0, *ends[:-1]]
    return [(start, begin, end) for start, (begin, _), end in zip(starts, runs, ends, strict=True)]


def _shares(source: int, target: int, limit: int) -> tuple[int, int]:
    """Return the numbers of tokens to keep of a question and of its answer: LLaMA-Factory's
    ``infer_seqlen``."""
    if target * 2 < limit:
        most = limit
    elif source * 2 < limit:
        most = limit - source
    else:
        most = int(limit * (target / (source + target)))
    kept = min(most, target)
    return min(max(limit - kept, 0), source), kept
