"""The page's server and report: who gets in, what a run's text can do, and what states a run has."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import get_args

import pytest
from page_runs import HOSTILE, begin, notice, samples, step, view_of, write_run

from paceline.config.load import load_config
from paceline.config.source import DEFAULTS
from paceline.core.errors import ConfigError
from paceline.watch.page.documents import ABOVE, config_of, log_page, samples_of
from paceline.watch.page.glance import LastBeat, StateName, state_of_run
from paceline.watch.page.report import STATIC, write_report
from paceline.watch.page.view import Runs

NOW = 1000.0


def beat(age: float = 0.0, phase: str = "train", lasts: float = 0.0) -> LastBeat:
    return LastBeat(0, NOW - age, 5, phase, NOW - age - lasts, 1, "elsewhere")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("planned", {"beat": None, "last_step": 0}),
        ("starting", {"beat": LastBeat(0, NOW, 0, "start", NOW, 1, "elsewhere"), "last_step": 0}),
        ("running", {"beat": beat()}),
        ("quiet", {"beat": beat(lasts=500.0)}),
        ("vanished", {"beat": beat(age=60.0)}),
        ("failed", {"beat": beat(age=60.0), "has_errors": True}),
        ("completed", {"beat": beat(phase="ended"), "result": {"outcome": "completed"}, "result_time": NOW}),
        ("stopped", {"beat": beat(phase="ended"), "finished": {"outcome": "stopped"}}),
        # Resumed: the result is an earlier attempt's
        ("running", {"beat": beat(), "result": {"outcome": "stopped"}, "result_time": NOW - 100}),
    ],
)
def test_the_state_of_a_run(name: str, given: dict[str, object]) -> None:
    facts = {
        "result": {},
        "result_time": 0.0,
        "finished": {},
        "has_errors": False,
        "last_step": 5,
        "step_seconds": 1.0,
    }
    state = state_of_run(**{**facts, "now": NOW, "host": "here", **given})  # type: ignore[arg-type]
    assert state.name == name and name in get_args(StateName)


def test_only_the_token_and_a_local_name_get_in(tmp_path: Path) -> None:
    pytest.importorskip("starlette", reason="the packages of the page (.[page]) are not installed")
    from starlette.testclient import TestClient

    from paceline.watch.page.server import ANSWERS, make_app

    run = write_run(tmp_path / "runs" / "a", [begin(), step(1), samples(1, HOSTILE), notice(HOSTILE)])
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    with Runs(tmp_path / "runs", tmp_path / "cache") as runs:
        client = TestClient(make_app(runs, "secret"), base_url="http://127.0.0.1")
        assert client.get("/api/runs").status_code == 403 == client.get("/?token=wrong").status_code
        assert client.get("/?token=secret", headers={"host": "evil.example"}).status_code == 400
        answer = client.get("/?token=secret")
        assert answer.status_code == 200 and "token" not in str(answer.url)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        (row,) = client.get("/api/runs").json()["runs"]
        for path in ANSWERS:
            answer = client.get(f"/api/runs/{row['id']}{path}?name=steps/loss")
            assert answer.status_code == 200 and answer.headers["content-type"] == "application/json", path
        found = client.get(f"/api/runs/{row['id']}/samples").json()["groups"][0]["rows"][0]
        assert found["prompt"] == HOSTILE
        assert client.get("/static/..%2fserver.py").status_code == 404
        assert client.get(f"/api/runs/{row['id']}/log?name=../config.yaml").json()["lines"] == []
        assert client.post("/api/runs").status_code == 405
        assert client.get(f"/api/runs/{row['id']}/series?buckets=x").status_code == 400
    assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before, "a reader only reads"


def test_a_report_holds_the_run_and_lets_none_of_its_text_act(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(), step(1), samples(1, HOSTILE), notice(HOSTILE)])
    target = tmp_path / "r" / "report.html"
    write_report(view_of(run, tmp_path / "cache"), target, print)
    text = target.read_text()
    assert "owned" in text and HOSTILE not in text and text.count("<script") == 2
    data, script = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert json.loads(data)["samples"]["groups"][0]["rows"][0]["prompt"] == HOSTILE
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and "http" not in re.sub(
        r"http://www.w3.org/\S+", "", script
    )
    with pytest.raises(ConfigError, match="report.write"):
        write_report(view_of(run, tmp_path / "cache"), run.plan_json / "report.html", print)


def test_a_log_is_searched_from_its_end(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    run.logs.mkdir()
    lines = [f"line {i} {'Error' if i % 1000 == 7 else ''} {'x' * 60}" for i in range(9000)]
    run.training_log.write_text("\n".join(lines) + "\n")
    page = log_page(run, "training.log", "error", None, 4)
    assert page["lines"] == [line for line in lines if "Error" in line][-4:]
    rest = log_page(run, "training.log", "error", int(str(page["before"])), 100)
    assert rest == {"lines": [line for line in lines if "Error" in line][:-4], "before": 0}
    assert log_page(run, "training.log", "", None, 10**6)["lines"] == lines


def test_both_languages_have_every_text() -> None:
    text = (STATIC / "texts.js").read_text(encoding="utf-8")
    english, chinese = (
        re.findall(r'(?:^|[\s{])"?([a-z_]+(?: [a-z]+)*)"?: "((?:[^"\\]|\\.)*)"', part)
        for part in re.split(r"\n  zh: \{", text.partition("const CURVE_NAMES")[0])
    )
    assert len(english) > 100 and [key for key, _ in english] == [key for key, _ in chinese]
    for (key, one), (_, other) in zip(english, chinese, strict=True):
        assert set(re.findall(r"\{\d\}", one)) == set(re.findall(r"\{\d\}", other)), key
    used = "".join(path.read_text(encoding="utf-8") for path in STATIC.glob("*.js"))
    keys = {key for key, _ in english}
    assert not set(re.findall(r'\bt\("([a-z_]+)"', used)) - keys - {"s_"}
    assert all(f"s_{state}" in keys for state in get_args(StateName))
    assert ".innerHTML" not in used and "insertAdjacentHTML" not in used


def test_held_out_answers_are_counted_whole(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "answer": "a", "correct": i % 3 == 0} for i in range(240)]
    run = write_run(tmp_path / "run", [begin(), {"kind": "answers", "step": 1, "rows": rows}])
    (group,) = samples_of(view_of(run, tmp_path / "cache"), None, 5)["groups"]
    assert (group["count"], group["right"], len(group["rows"])) == (240, 80, 200)


def test_each_value_names_what_set_it(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("model: {name_or_path: m}\ntraining:\n  learning_rate: 1e-4\n  seed: 3\n")
    config = load_config(str(own), overrides=["training.seed=5"]).config.to_json()
    run = write_run(tmp_path / "run", [begin()], plan={"config": config})
    run.config_yaml.write_bytes(own.read_bytes())
    rows = {row["key"]: row for row in config_of(run) if isinstance(row, dict)}
    found = {key: (row["value"], row["layer"], row["place"]) for key, row in rows.items()}
    assert found["training.learning_rate"] == ("0.0001", "yaml", "config.yaml:3")
    assert found["training.seed"] == ("5", ABOVE, "")
    assert found["training.max_grad_norm"][1:] == (DEFAULTS, "")
    assert found["training.experiment_name"] == ("own", ABOVE, "name of the config file")
    assert rows["training.max_grad_norm"]["default"] and not rows["training.seed"]["default"]
