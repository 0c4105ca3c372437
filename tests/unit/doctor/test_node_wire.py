"""Messages between nodes: signed, numbered, bounded; a stranger learns and changes nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from paceline.doctor.nodes.meeting import Meeting, join
from paceline.doctor.nodes.messages import (
    LIMIT_BYTES,
    Hello,
    NodeRequest,
    NotOurs,
    Wire,
    greet,
    received,
    welcome,
)
from paceline.plan.plan_json import to_json

SECRET = b"a secret of sixteen or more"
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def opened(pair: Pair, secret: bytes = SECRET) -> tuple[Wire, Wire]:
    wires: list[Wire] = []
    thread = threading.Thread(target=lambda: wires.append(greet(pair[1], secret, {"rank": 1}, 5)))
    thread.start()
    try:
        wire, hello = welcome(pair[0], SECRET, 5)
    finally:
        thread.join()
    assert hello == {"rank": 1}
    return wire, wires[0]


def test_both_sides_hear_each_other(pair: Pair) -> None:
    server, client = opened(pair)
    client.send({"a": 1}, 5)
    assert server.receive(5) == {"a": 1}
    server.send({"b": "ü"}, 5)
    assert client.receive(5) == {"b": "ü"}


@pytest.mark.parametrize("secret", [b"another secret of theirs", b""])
def test_another_secret_is_refused_and_both_know(pair: Pair, secret: bytes) -> None:
    with pytest.raises(NotOurs) as caught:
        opened(pair, secret)
    assert caught.value.claim == {"rank": 1}
    pair[1].settimeout(5)
    assert pair[1].recv(100).endswith(b"another secret")


def test_a_recorded_message_is_not_accepted_again(pair: Pair) -> None:
    server, client = opened(pair)
    client.send({"a": 1}, 5)
    record = pair[0].recv(1000, socket.MSG_PEEK)
    assert server.receive(5) == {"a": 1}
    pair[1].sendall(record)
    with pytest.raises(NotOurs):
        server.receive(5)


def test_a_message_sent_back_or_changed_is_not_accepted(pair: Pair) -> None:
    server, client = opened(pair)
    client.send({"a": 1}, 5)
    record = pair[0].recv(1000)
    pair[0].sendall(record)  # the client's own words
    with pytest.raises(NotOurs):
        client.receive(5)
    pair[1].sendall(record.replace(b'"a": 1', b'"a": 2'))
    with pytest.raises(NotOurs):
        server.receive(5)


def test_a_message_beyond_the_limit_is_not_read(pair: Pair) -> None:
    server, _ = opened(pair)
    pair[1].sendall((LIMIT_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(OSError, match="a message of"):
        server.receive(5)


def test_silence_ends_in_time(pair: Pair) -> None:
    server, _ = opened(pair)
    pair[1].sendall(b"\0\0")
    with pytest.raises(TimeoutError):
        server.receive(0.1)


@pytest.mark.parametrize(
    "data", [{"rank": "1"}, {"rank": True, "nnodes": []}, {"unknown": 1}, {"rank": 1}, {"rank": None}]
)
def test_a_message_of_another_form_is_an_error_of_the_other_side(data: dict[str, object]) -> None:
    with pytest.raises(OSError, match="not a message"):
        received(Hello, json.loads(json.dumps(data)))


def test_a_meeting_ignores_strangers_and_ends_when_all_are_there() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    place = server.getsockname()[:2]
    meeting = Meeting(server, SECRET, Hello(0, 3, "a", "127.0.0.1", 1))
    gathering = threading.Thread(target=meeting.gather, args=(60.0,))
    gathering.start()
    with socket.create_connection(place) as noise:
        noise.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 5000)
    other = join(place, b"another secret of theirs", Hello(2, 3, "c\x1b[31m", "127.0.0.1", 1), 5)
    with pytest.raises(NotOurs):
        other.receive(5)
    wire = join(place, SECRET, Hello(1, 3, "b", "127.0.0.1", 1), 5)
    begun = time.monotonic()
    gathering.join()
    assert list(meeting.hellos) == [0, 1] and time.monotonic() - begun < 50
    (found,) = meeting.findings(60.0)
    assert found.code == "node.other_secret" and "\x1b" not in found.where
    answers: list[object] = []
    asking = threading.Thread(
        target=lambda: answers.append(
            meeting.request_all({r: NodeRequest("clock") for r in (0, 1)}, 5, lambda request: {"now": 1.0})
        )
    )
    asking.start()
    assert received(NodeRequest, wire.receive(5)).kind == "clock"
    wire.close()
    asking.join()
    assert answers == [({0: {"now": 1.0}}, [1])] and list(meeting.hellos) == [0]
    other.close()
    assert to_json(NodeRequest("clock"))["verdict"] is None
