"""Requests that vLLM 0.32's server was asked (tests/peers/vllm/record.py): ours answers with the same
statuses, shapes, texts, tokens, log-probabilities, stop rules and fields of errors.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "tests/peers/vllm"))
from record import SEED, real_vllm, recorded  # noqa: E402
from vllm_asked import CHAT, RESPONSES, TEXT, TOOL, write_model  # noqa: E402

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
RECORDED = json.loads((ROOT / "tests/peers/vllm/recorded.json").read_text(encoding="utf-8"))
KEY = {"authorization": "Bearer the-key"}
Row = dict[str, Any]
#: Where ours is to differ, and why.
DIFFERENT = {
    "null is the default wherever it is one": lambda body: (
        ("prompt" in body and body.get("n", 1) is None) or ("input" in body and body.get("tools", 1) is None)
    ),
    "tools that the chat template does not write are refused": lambda body: body.get("tools") == [TOOL],
    "parts are joined by nothing, as in training": lambda body: any(
        isinstance(one, dict) and isinstance(one.get("content"), list) and len(one["content"]) > 1
        for one in (body.get("messages") if isinstance(body.get("messages"), list) else ())
    ),
    "a token that is not given back is not counted": lambda body: (
        body.get("max_tokens") == 0 and body.get("echo")
    ),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from starlette.testclient import TestClient

    from paceline.evaluation.serve import front, load

    folder = write_model(tmp_path_factory.mktemp("vllm") / "tiny")
    with TestClient(front(load(folder, "mine", "float32"), "the-key")) as found:
        found.base_url = "http://127.0.0.1"
        yield found


def put(client: Any, row: Row) -> tuple[int, Any]:
    """Ask ours what vLLM was asked; return status and answer (the events of a stream)."""
    if "body" in row:
        found = client.post(row["path"], json=row["body"], headers=KEY)
    else:
        headers = {**KEY, **row["headers"]}
        found = client.request(row["method"], row["path"], headers=headers, content=row["content"])
    if found.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in found.text.splitlines() if line.startswith("data: ")]
        parts = [line.removeprefix("data: ") for line in lines]
        return found.status_code, [one if one == "[DONE]" else json.loads(one) for one in parts]
    return found.status_code, found.json()


UNLIKE = {"id", "item_id", "created", "created_at", "system_fingerprint"}


def differences(ours: Any, theirs: Any, place: str, *, values: bool) -> Iterator[str]:
    """Yield where two answers differ; without ``values`` in their shapes alone."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys() and not place.endswith("top_logprobs[]"):
            yield f"{place}: {sorted(ours.keys() ^ theirs.keys())}"
        for name in ours.keys() & theirs.keys() - UNLIKE:
            yield from differences(ours[name], theirs[name], f"{place}.{name}", values=values)
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs) and values:
            yield f"{place}: {len(ours)} and {len(theirs)} items: {ours} {theirs}"[:300]
        for one, two in zip(ours, theirs, strict=False):
            yield from differences(one, two, f"{place}[]", values=values)
    elif isinstance(ours, float) and isinstance(theirs, float):
        if values and not math.isclose(ours, theirs, abs_tol=2e-3):
            yield f"{place}: {ours} and {theirs}"
    elif (values and ours != theirs) or (type(ours) is not type(theirs) and None not in (ours, theirs)):
        yield f"{place}: {ours!r} and {theirs!r}"


def merged(events: list[Any]) -> list[Row]:
    """Return a stream's choices, one an index, from all their events, however many tokens each has."""
    choices: dict[int, Row] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            kept = choices.setdefault(
                choice["index"],
                # an answer drawn at random may end by itself, which is a stop_reason
                {"text": "", "token_ids": [], "logprobs": [], "finish_reason": None, "stop_reason": None},
            )
            delta = choice.get("delta", choice)
            kept["text"] += delta.get("content") or delta.get("text") or ""
            kept["token_ids"] += choice.get("token_ids") or []
            scores = choice.get("logprobs") or {}
            kept["logprobs"] += scores.get("content") or scores.get("token_logprobs") or []
            kept |= {k: choice[k] for k in ("finish_reason", "stop_reason") if choice.get(k) is not None}
    return [choices[index] for index in sorted(choices)]


def found_in_stream(ours: list[Any], theirs: list[Any], *, values: bool) -> Iterator[str]:
    if ours[-1] != "[DONE]" or theirs[-1] != "[DONE]":
        yield "no [DONE]"
    yield from differences(merged(ours), merged(theirs), "stream", values=values)
    by_kind: dict[tuple[bool, bool], tuple[Any, Any]] = {}
    for at, events in enumerate((ours, theirs)):
        for event in events[:-1]:
            last = not event["choices"] or event["choices"][0].get("finish_reason") is not None
            kind = ("role" in str(event["choices"]), last)
            pair = by_kind.get(kind, (None, None))
            by_kind[kind] = (event, pair[1]) if at == 0 else (pair[0], event)
    for kind, (one, two) in by_kind.items():
        if one is None or two is None:
            if kind != (False, False):  # an answer of one token has no middle
                yield f"events of kind {kind} on one side alone"
        else:
            yield from differences(one, two, f"event{kind}", values=False)


def found_in_response(ours: list[Row], theirs: list[Row]) -> Iterator[str]:
    kinds = [[event["type"] for event in events] for events in (ours, theirs)]
    if list(dict.fromkeys(kinds[0])) != list(dict.fromkeys(kinds[1])):
        yield f"kinds of events {kinds}"
    first = [{event["type"]: event for event in reversed(events)} for events in (ours, theirs)]
    for kind in first[0].keys() & first[1].keys():
        values = kind in ("response.created", "response.completed", "response.output_text.done")
        pair = [{k: v for k, v in one[kind].items() if k != "sequence_number"} for one in first]
        yield from differences(*pair, kind, values=values)


def found(row: Row, status: int, answer: Any) -> Iterator[str]:
    """Yield what is not as vLLM's answer to the same request."""
    body = row.get("body", {})
    if status != row["status"]:
        yield f"status {status} for {row['status']}: {answer}"
        return
    if status != 200:
        error = answer["error"]
        if error.keys() != {"message", "type", "param", "code"} or error["code"] != status:
            yield f"error {error}"
        theirs = (row["answer"].get("error") or {}).get("param") or ""
        named = theirs.removeprefix("body.").partition(".")[0]
        named = (
            "max_completion_tokens" if "max_completion_tokens" in body and named == "max_tokens" else named
        )
        if named in body and named not in (error["param"] or "") and named not in error["message"]:
            yield f"the error names {error['param']}, not {named}: {error['message']}"
        return
    values = body.get("temperature") == 0
    if row["path"] == RESPONSES and "events" in row:
        yield from found_in_response(answer, row["events"])
    elif "events" in row:
        yield from found_in_stream(answer, row["events"], values=values)
    else:
        yield from differences(answer, row["answer"], "", values=values)


def compared(client: Any, rows: list[Row]) -> tuple[list[str], set[str]]:
    """Return what differs, and why the rest of it does."""
    wrong: list[str] = []
    differs = set[str]()
    for row in rows:
        asked = json.dumps(row.get("body", row.get("content")))[-160:]
        here = [f"{one}   <- {row['path']} {asked}" for one in found(row, *put(client, row))]
        reasons = {why for why, is_so in DIFFERENT.items() if "body" in row and is_so(row["body"])}
        differs |= reasons if here else set()
        wrong += [] if reasons else here
    return wrong, differs


def test_requests_are_answered_as_vllm_answers_them(client: Any) -> None:
    wrong, differs = compared(client, RECORDED["answers"])
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong)
    assert differs == set(DIFFERENT), "no difference any more"
    statuses = [row["status"] for row in RECORDED["answers"]]
    assert min(statuses.count(200), statuses.count(400)) > 60
    assert {row["path"] for row in RECORDED["answers"]} > {CHAT, TEXT, RESPONSES}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_other_requests_are_answered_as_a_real_vllm_answers_them(
    client: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """PACELINE_VLLM_PYTHON: the interpreter of an environment with vLLM 0.32; without it one is made."""
    folder = tmp_path_factory.mktemp("real")
    with real_vllm(folder, write_model(folder / "mine")) as url:
        rows = [row for seed in range(1, 6) for row in recorded(url, seed)]
        again = recorded(url, SEED)
    changed = [
        f"{one}   <- {row['path']} {row.get('body', row.get('content'))}"
        for row, fresh in zip(RECORDED["answers"], again, strict=True)
        for one in (
            [f"status {fresh['status']} for {row['status']}"]
            if fresh["status"] != row["status"]
            else found(row, 200, fresh.get("events", fresh.get("answer")))
            if row["status"] == 200
            else ()
        )
    ]
    assert not changed, "the recorded answers are others than vLLM's:\n" + "\n".join(changed)
    wrong, _ = compared(client, rows)
    assert not wrong, f"{len(wrong)} of {len(rows)} differ:\n" + "\n".join(wrong)
    assert len(rows) > 1000
