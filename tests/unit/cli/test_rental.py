"""``paceline plan --goal``: how many devices of which kind, for a deadline and a budget."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from paceline.cli.main import application_of
from paceline.core.errors import ConfigError
from paceline.plan.cost.rental.choices import offers
from paceline.plan.hardware.device_catalogue import cards

RUN = CliRunner()
JOB = ("--model", "llama-3-8b", "--tokens", "10e9")


def asked(*arguments: str, code: int = 0) -> str:
    """What ``plan`` prints; it leaves with ``code``."""
    result = RUN.invoke(application_of("plan"), list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code
    return result.stdout


def answered(*arguments: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(asked(*arguments, "--json"))
    return told


def test_each_goal_is_the_least_of_what_was_searched_and_keeps_its_limits() -> None:
    of = {
        goal: answered(*JOB, "--goal", goal, "--by", "3d", "--hardware", "H100,A100,4090")
        for goal in ("cheapest", "fastest", "fewest")
    }
    best = {goal: told["best"] for goal, told in of.items()}
    assert all(choice["seconds"] <= 3 * 86400 for choice in best.values())
    assert best["cheapest"]["usd"] < best["fastest"]["usd"]
    assert best["fastest"]["seconds"] < best["fewest"]["seconds"]
    assert best["fewest"]["cards"] <= min(best["cheapest"]["cards"], best["fastest"]["cards"])
    sold = best["cheapest"]["offer"]
    price = sold["usd_per_card_hour"] * best["cheapest"]["cards"] * best["cheapest"]["seconds"] / 3600
    assert best["cheapest"]["usd"] == pytest.approx(price, rel=1e-4)
    assert sold["date"] >= "2026" and sold["source"].startswith("https://")


@pytest.mark.full
def test_the_front_trades_time_for_money_and_more_devices_cost_no_less_than_the_best() -> None:
    told = answered(*JOB, "--goal", "cheapest")
    front = told["front"]
    assert [c["seconds"] for c in front] == sorted(c["seconds"] for c in front)
    assert [c["usd"] for c in front] == sorted((c["usd"] for c in front), reverse=True)
    assert front[-1]["usd"] == told["best"]["usd"]


def test_a_budget_alone_asks_for_the_fastest_within_it() -> None:
    told = answered(*JOB, "--budget", "$3,000", "--hardware", "p5.48xlarge")
    assert told["goal"] == "fastest" and told["best"]["usd"] <= 3000
    assert told["best"]["cards"] % 8 == 0 and told["best"]["offer"]["product"] == "p5.48xlarge"


def test_spot_time_and_cost_count_the_nodes_that_are_taken_and_say_what_is_assumed() -> None:
    job = (*JOB, "--hardware", "4xa3-ultragpu-8g")
    of = {time: answered(*job, "--spot", time)["best"] for time in ("100w", "24h", "1h")}
    for best in of.values():
        lost = best["goodput"]
        rate = 1 / lost["taken"] * best["nodes"] + best["cards"] / (50_000 * 3600)
        assert lost["between"] == pytest.approx(1 / rate)
        assert lost["interval"] == pytest.approx((2 * lost["save"] * lost["between"]) ** 0.5)
        assert best["usd"] == pytest.approx(6.2607 * best["cards"] * best["seconds"] / 3600, rel=1e-4)
        steps = math.ceil(10e9 / (128 * 4096)) * best["layout"]["step_seconds"]
        assert best["seconds"] == pytest.approx(lost["start"] + steps / lost["share"], rel=1e-3)
    assert 0.5 < of["1h"]["goodput"]["share"] < of["24h"]["goodput"]["share"] < 0.98
    assert of["100w"]["goodput"]["share"] > 0.99
    page = asked(*job, "--spot", "24h")
    told = " ".join(page.split())
    assert "assumed: --spot" in told and "assumed, not measured: 2 GB/s" in told and "arXiv:2407" in told
    assert max(map(len, page.splitlines())) <= 100


def test_the_useful_share_is_what_a_thousand_simulated_failures_leave() -> None:
    lost = answered(*JOB, "--hardware", "4xa3-ultragpu-8g", "--spot", "2h")["best"]["goodput"]
    between, chunk, draw = lost["between"], lost["interval"] + lost["save"], random.Random(1)
    restart = lost["start"] + 120 + lost["save"]
    clock, saves, failed = 0.0, 0, 0
    until = draw.expovariate(1 / between)
    pending = chunk
    while failed < 20_000:
        if until >= pending:
            clock, until, saves, pending = clock + pending, until - pending, saves + 1, chunk
        else:
            # All since the last save is lost; a restart may fail as well
            clock, failed, until, pending = clock + until, failed + 1, draw.expovariate(1 / between), chunk
            pending += restart
    assert saves * lost["interval"] / clock == pytest.approx(lost["share"], rel=0.02)


def test_limits_that_nothing_keeps_are_answered_with_the_nearest() -> None:
    told = asked(*JOB, "--by", "1h", "--budget", "20USD", "--hardware", "A100", code=2)
    assert "Nothing that was searched keeps the limits" in told and "the cheapest is" in told


def test_hardware_without_a_price_has_no_cost() -> None:
    told = answered("--model", "llama-3-8b", "--goal", "fewest", "--hardware", "MI300X")
    assert told["best"]["usd"] is None and told["best"]["offer"] is None and not told["whole"]
    page = asked("--model", "llama-3-8b", "--goal", "fewest", "--hardware", "MI300X")
    assert "no price" in page and max(map(len, page.splitlines())) <= 100


def test_a_config_is_asked_as_well(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    training = {"output_dir": str(tmp_path / "out"), "max_steps": 1000, "per_device_train_batch_size": 16}
    data = {"train_file": "x.jsonl", "max_length": 4096}
    path.write_text(
        yaml.safe_dump({"model": {"name_or_path": "Qwen/Qwen2.5-7B"}, "data": data, "training": training})
    )
    told = answered(str(path), "--goal", "cheapest", "--by", "4d", "--hardware", "H100,A100")
    assert told["whole"] and told["best"]["layout"]["config"]["per_device_train_batch_size"] >= 1
    rows = told["best"]["layout"]
    assert rows["micro_batch"] * rows["accumulation"] * told["best"]["cards"] % 128 == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--goal", "best"), "plan.limit"),
        (("--by", "soon"), "plan.limit"),
        (("--budget", "5000EUR"), "plan.limit"),
        (("--budget", "0USD"), "plan.limit"),
        (("--by", "0h"), "plan.limit"),
        (("--spot", "often"), "plan.limit"),
        (("--spot", "0h"), "plan.limit"),
        (("--spot", "24h", "--hardware", "A10"), "plan.goal_spot"),
        (("--by", "3d", "--hardware", "H100"), "plan.goal_length"),
        (("--goal", "fewest", "--hardware", "T4", "--model", "llama-3.1-405b"), "plan.goal_nothing"),
        (("--goal", "fewest", "--hardware", "p5.40xlarge"), "plan.hardware_unknown"),
    ],
)
def test_what_cannot_be_answered_is_a_diagnostic(arguments: tuple[str, ...], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        asked("--model", "llama-3-8b", *arguments)
    assert caught.value.diagnostics[0].code == code


def test_every_price_is_dated_and_of_a_card_of_the_catalogue() -> None:
    for offer in offers():
        assert offer.card in cards() and offer.usd > 0 and offer.cards >= 1, offer
        assert len(offer.date) == len("2026-09-25") and "https://" in offer.source, offer
        assert offer.spot_usd is None or offer.spot_usd < offer.usd, offer


def test_the_picture_of_cost_against_time_is_written(tmp_path: Path) -> None:
    asked(*JOB, "--goal", "cheapest", "--hardware", "H100", "--picture", str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
