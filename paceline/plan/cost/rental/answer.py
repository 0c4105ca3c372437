"""The answer to what to rent, as a table of at most 100 columns and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.json_types import JsonObject
from paceline.core.units import aligned, human_bytes, human_seconds
from paceline.plan.cost.coefficients import spread
from paceline.plan.cost.rental.choices import Choice, Choices, Goal
from paceline.plan.cost.report import candidate_json, settings, settings_text, short_mesh, wrapped
from paceline.plan.cost.search import GIB, host_bytes
from paceline.plan.hardware.device_catalogue import instance_named

SHOWN = 12
SHOWN_TRADES = 5  # of those that nothing beats in both


def text(name: str, choices: Choices) -> str:
    """Return the answer for the terminal."""
    limits = choices.limits
    wording = [f"{limits.goal.value} hardware for {name}"]
    wording += [f"within {human_seconds(limits.by)}"] if limits.by is not None else []
    wording += [f"for at most {limits.budget:,.0f} USD"] if limits.budget is not None else []
    wording += ["on spot cards"] if limits.spot is not None else []
    per = "" if choices.whole else "/B"
    header = ("", "hardware", "layout", "micro", "GiB", "tok/s", f"time{per}", f"USD{per}", "offer")
    kinds = choices.by_kind()
    rows = [_row(choice, choices) for choice in kinds[:SHOWN]]
    lines = [", ".join(wording), "", aligned([header, *rows], numbers_from=4), ""]
    lines += _best(choices) if choices.best is not None else _nearest(choices)
    front = choices.front()
    if len(front) > SHOWN_TRADES:
        front = [front[i * (len(front) - 1) // (SHOWN_TRADES - 1)] for i in range(SHOWN_TRADES)]
    if len(front) > 1:
        steps = "; ".join(f"{hardware_of(c)} {human_seconds(c.seconds)} {_usd(c)} USD" for c in front)
        lines += wrapped("trade", f"faster costs more; nothing else is both faster and cheaper: {steps}")
    unpriced = [c.name for c in kinds if c.usd is None]
    if unpriced:
        lines += wrapped(
            "no price", f"the list has no price for so many of: {', '.join(unpriced)}; hence no cost"
        )
    slow, fast = spread("speed")
    lines += wrapped(
        "prices",
        "list prices without tax, storage and traffic (paceline/plan/data/prices.json). Time and cost"
        f" are as uncertain as the speed: × {1 / fast:.2f} to {1 / slow:.2f} for 80 % of published rows."
        " Without --rows, a step has two rows a device or more",
    )
    lines.append("* best  · keeps the limits  micro: micro-batch × accumulation, r: with recomputation")
    if per:
        lines.append("/B: of a billion tokens, since the length is not known (--tokens)")
    return "\n".join(lines) + "\n"


def to_json(name: str, choices: Choices) -> JsonObject:
    """Return the answer as plain JSON types."""
    limits = choices.limits
    return {
        "model": name,
        "goal": limits.goal.value,
        "by_seconds": limits.by,
        "budget_usd": limits.budget,
        "spot_seconds": limits.spot,
        "whole": choices.whole,
        "tried": choices.tried,
        "best": _choice_json(choices.best) if choices.best is not None else None,
        "kinds": [_choice_json(choice) for choice in choices.by_kind()],
        "front": [_choice_json(choice) for choice in choices.front()],
    }


def _choice_json(choice: Choice) -> JsonObject:
    offer = choice.offer
    sold: JsonObject | None = None
    if offer is not None:
        sold = {
            "seller": offer.seller,
            "product": offer.product,
            "usd_per_card_hour": offer.usd,
            "spot_usd_per_card_hour": offer.spot_usd,
            "date": offer.date,
            "source": offer.source,
            "via": offer.via,
        }
    return {
        "hardware": choice.name,
        "cards": choice.cluster.cards,
        "nodes": choice.cluster.nodes,
        "seconds": round(choice.seconds, 1),
        "usd": None if choice.usd is None else round(choice.usd, 2),
        "goodput": choice.lost.to_json(),
        "offer": sold,
        "layout": candidate_json(choice.candidate),
    }


def _row(choice: Choice, choices: Choices) -> Sequence[str]:
    c = choice.candidate
    mark = "*" if choice is choices.best else "·" if choice.within(choices.limits) else ""
    return (
        mark,
        hardware_of(choice),
        f"{c.strategy} {short_mesh(c)}" if c.work.world > 1 else "one card",
        f"{c.work.micro_batch}×{c.work.accumulation}{'r' if c.work.recompute == 'full' else ''}",
        f"{c.bytes / GIB:.1f}",
        f"{c.work.step_tokens / c.step / c.work.world:,.0f}",
        human_seconds(choice.seconds),
        _usd(choice),
        "" if choice.offer is None else choice.offer.seller,
    )


def hardware_of(choice: Choice) -> str:
    """Return how many of what, as a user would order it."""
    cards = choice.cluster.cards
    instance = instance_named(choice.name)
    if instance is not None:
        return f"{cards // instance.cards} × {instance.name}"
    return f"{cards} × {choice.cluster.machine.name}"


def _usd(choice: Choice) -> str:
    return "–" if choice.usd is None else f"{choice.usd:,.0f}" if choice.usd >= 10 else f"{choice.usd:.2f}"


def _best(choices: Choices) -> list[str]:
    best = choices.best
    if best is None:
        return []
    lines = wrapped(
        choices.limits.goal.value,
        f"{hardware_of(best)}, {_nodes(best.cluster.nodes)}: {_money(best, choices)}",
    )
    host = host_bytes(best.candidate.work)
    if host:
        lines += wrapped("host", f"offload needs {human_bytes(host)} of host memory per node")
    lines += wrapped("goodput", best.lost.text(best.candidate.step))
    return lines + wrapped("start", settings_text(settings(best.candidate)))


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _money(choice: Choice, choices: Choices) -> str:
    per = "" if choices.whole else " a billion tokens"
    spent = f"{human_seconds(choice.seconds)}{per}"
    price = choice.offer.price(choices.limits.spot is not None) if choice.offer else None
    if choice.offer is None or price is None:
        return f"{spent}; the list of prices has none for it"
    offer = choice.offer
    return (
        f"{spent} × {choice.cluster.cards} cards × {price:.2f} USD an hour = {_usd(choice)} USD{per} at"
        f" {offer.seller} ({offer.product}; {offer.date}, {offer.source})"
    )


def _nearest(choices: Choices) -> list[str]:
    """Say what keeps one of two limits, or comes nearest to the only one."""
    limits, lines = choices.limits, ["Nothing that was searched keeps the limits."]
    priced = [c for c in choices.found if c.usd is not None]
    if limits.goal is Goal.CHEAPEST and not priced:
        return lines + wrapped("no price", "the list has no price for this hardware; hence no cost")
    if limits.by is not None:
        cheap = [c for c in priced if c.seconds <= limits.by]
        if cheap and limits.budget is not None:
            c = min(cheap, key=lambda c: c.usd or 0.0)
            lines += wrapped(
                "in time", f"the cheapest is {hardware_of(c)}: {_usd(c)} USD, {human_seconds(c.seconds)}"
            )
        elif not any(c.seconds <= limits.by for c in choices.found):
            c = min(choices.found, key=lambda c: c.seconds)
            lines += wrapped("fastest", f"{hardware_of(c)} takes {human_seconds(c.seconds)}: {_usd(c)} USD")
    if limits.budget is not None and priced:
        paid = [c for c in priced if (c.usd or 0.0) <= limits.budget]
        c = min(paid, key=lambda c: c.seconds) if paid else min(priced, key=lambda c: c.usd or 0.0)
        word = "the fastest within the budget" if paid else "the cheapest"
        lines += wrapped(
            "in budget" if paid else "cheapest",
            f"{word} is {hardware_of(c)}: {_usd(c)} USD, {human_seconds(c.seconds)}",
        )
    return lines
