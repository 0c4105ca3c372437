"""What ranks tell each other: only a rank of the run is believed, and only for this key of this attempt."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist

from paceline.core.diagnostics import Diagnostic
from paceline.runtime.process_group.refusal import parsed_failure
from paceline.runtime.process_group.signed_store import SignedStore, fingerprint

SECRET = b"0123456789abcdef"


@pytest.fixture
def store() -> dist.Store:
    return dist.HashStore()


def test_ranks_believe_each_other(store: dist.Store) -> None:
    one, two = (SignedStore(store, SECRET, "run/attempt_0") for _ in range(2))
    assert two.get("a") is None
    one.set("a", "né\n")
    one.set("b", "")
    assert (two.get("a"), two.get("b")) == ("né\n", "") and two.get_all(["a", "b"]) == ["né\n", ""]
    assert (
        one.set_first("error", "mine") and not two.set_first("error", "other") and two.get("error") == "mine"
    )
    assert SECRET not in store.get("a")


@pytest.mark.parametrize(
    "value", ["", "1", "\x1b[31m", "{}", "0" * 64, "0" * 64 + "{}", "é" * 64, '{"rank": 0}', b"\xff\xfe" * 40]
)
def test_a_stranger_is_ignored_and_said_once(store: dist.Store, value: str | bytes) -> None:
    forged: list[str] = []
    mine = SignedStore(store, SECRET, "run", forged.append)
    store.set("error", value)
    store.set("alive/1", value)
    assert (
        mine.get("error") is None
        and mine.get("error") is None
        and mine.get_all(["alive/1", "error"]) == [None] * 2
    )
    assert forged == ["error"]
    assert mine.set_first("error", "the real one"), "a stranger's value kept a rank from telling its error"
    assert mine.get("error") == "the real one"


def test_a_value_of_another_key_attempt_or_run_is_not_believed(store: dist.Store) -> None:
    SignedStore(store, SECRET, "run/attempt_0").set("alive/1", "9")
    store.set("alive/2", store.get("alive/1"))
    assert SignedStore(store, SECRET, "run/attempt_0").get("alive/2") is None
    assert SignedStore(store, SECRET, "run/attempt_1").get("alive/1") is None
    assert SignedStore(store, b"another secret !!", "run/attempt_0").get("alive/1") is None


def test_without_a_secret_all_is_believed_and_still_read_with_care(store: dist.Store) -> None:
    open_store = SignedStore(store, b"", "run")
    store.set("error", "anything")
    assert open_store.get("error") == "anything" and parsed_failure(open_store.get("error")) is None


def test_a_fingerprint_tells_secrets_apart_and_does_not_tell_them() -> None:
    assert fingerprint(b"") == "" and len({fingerprint(SECRET), fingerprint(SECRET + b"x")}) == 2
    assert SECRET.decode() not in fingerprint(SECRET)


def message(**changed: object) -> str:
    found = Diagnostic("data.row", "row 17", "train.jsonl:18", "x", "y", evidence={"n": 1}).to_json()
    return json.dumps({"rank": 1, "exit_code": 1, "diagnostic": {**found, **changed}})


def test_an_error_is_heard_as_it_was_told() -> None:
    told = parsed_failure(message())
    assert told is not None and told[0] == 1
    assert (told[1].code, told[1].what, told[1].where, dict(told[1].evidence)) == (
        "data.row",
        "row 17",
        "train.jsonl:18",
        {"n": 1},
    )


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "1",
        "[]",
        "{}",
        "null",
        '{"rank": "x", "diagnostic": {}}',
        '{"rank": 1}',
        '{"rank": 1, "diagnostic": 7}',
        "[" * 100_000,
        message(code="\x1b[31m"),
        message(code="launch.x] rank 0"),
        message(code=""),
        message(what=""),
        message(evidence=[1]),
        message(evidence="x"),
        '{"rank": 1, "diagnostic": null}',
        '{"rank": 1e999, "diagnostic": {}}',
    ],
)
def test_what_no_rank_writes_is_not_heard(text: str | None) -> None:
    assert parsed_failure(text) is None
