"""Findings of rules and plan put together: every violation at once, whatever its place is called."""

from __future__ import annotations

import random
from dataclasses import replace

from paceline.config.source import Source
from paceline.core.diagnostics import Diagnostic
from paceline.launch.preflight.plan_job import merged


def finding(code: str, where: str, what: str = "wrong") -> Diagnostic:
    return Diagnostic(code, what, where, f"found of {where}", "write")


def test_a_place_inside_anothers_does_not_swallow_it() -> None:
    rules = [finding("a.one", "x.yaml:12"), finding("a.two", "training.deepspeed and x.yaml:3")]
    plan = [finding("b.one", "x.yaml:1"), finding("b.two", "yaml:12"), finding("b.three", "training.deep")]
    assert merged(rules, plan, {}) == [*rules, *plan]


def test_the_same_code_at_the_same_key_is_said_once() -> None:
    provenance = {"training.a": Source("yaml", "x.yaml", 7), "training.b": Source("yaml", "x.yaml", 8)}
    rules = [finding("a.one", "x.yaml:7 and x.yaml:8")]
    plan = [
        finding("a.one", "training.a", "in other words"),
        finding("a.other", "training.a"),
        finding("a.one", "training.c"),
    ]
    found = merged(rules, plan, provenance)
    assert [(d.code, d.where) for d in found] == [
        ("a.one", "x.yaml:7 and x.yaml:8"),
        ("a.other", "x.yaml:7"),
        ("a.one", "training.c"),
    ]


def test_of_random_sets_every_code_and_key_is_left_and_no_finding_twice() -> None:
    rng = random.Random(3)
    keys = ["a", "a.b", "a.b.c", "b", "ab", "--nproc", "--np", "", "x.yaml:1", "x.yaml:11", "yaml:1"]
    provenance = {
        "a": Source("yaml", "x.yaml", 1),
        "a.b": Source("yaml", "x.yaml", 11),
        "b": Source("default"),
    }

    def some() -> list[Diagnostic]:
        return [
            finding(rng.choice("ABC"), rng.choice(keys), rng.choice("xy")) for _ in range(rng.randrange(8))
        ]

    def places(d: Diagnostic) -> str:
        source = provenance.get(d.where)
        return source.place() if source and source.layer != "default" else d.where

    for _ in range(500):
        rules, plan = [replace(d, where=places(d)) for d in some()], some()
        found = merged(rules, plan, provenance)
        wanted = {(d.code, d.where) for d in rules} | {(d.code, places(d)) for d in plan}
        assert {(d.code, d.where) for d in found} == wanted
        assert found[: len(rules)] == rules
        added = found[len(rules) :]
        assert len(set(map(repr, added))) == len(added)
        assert not {(d.code, d.where) for d in added} & {(d.code, d.where) for d in rules}


def test_what_is_said_with_its_line_is_not_said_again_without() -> None:
    def missing(where: str, path: str = "data/rows.jsonl") -> Diagnostic:
        return Diagnostic("data.missing", "there is no such file", where, path, "give a path")

    provenance = {"data.train": Source("yaml", "x.yaml", 4)}
    twice = [missing("data/rows.jsonl"), missing("data.train"), missing("data.eval", "data/others.jsonl")]
    for plan in (twice, twice[::-1]):
        found = merged((), plan, provenance)
        assert sorted(d.where for d in found) == ["data.eval", "x.yaml:4"]
