"""Choose hardware for a job: how many cards, of which kind, for a goal, a deadline and a budget.

The list of prices: what sellers ask for a card and an hour, when, and where that stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from paceline.core.errors import ConfigError
from paceline.plan import codes
from paceline.plan.cost.goodput import Goodput, goodput
from paceline.plan.cost.report import outlook
from paceline.plan.cost.search import Candidate, SearchSpec, fastest, search
from paceline.plan.hardware.device_catalogue import AcceleratorCluster, card_named, cluster_of, instance_named
from paceline.plan.plan_json import shipped_table


@dataclass(frozen=True)
class Offer:
    """A seller's on-demand price in USD for one card and hour; ``spot_usd``: if it may be taken away.

    - ``cards``: the smallest number that is rented at once
    - ``most``: the largest number that works together; None: any number of nodes
    - ``date``: when the price stood at ``source``; ``via``: the collection that it was read from
    """

    seller: str
    product: str
    card: str
    cards: int
    most: int | None
    usd: float
    spot_usd: float | None
    date: str
    source: str
    via: str | None

    def price(self, spot: bool) -> float | None:
        """USD for one card and hour."""
        return self.spot_usd if spot else self.usd

    def fits(self, name: str, cluster: AcceleratorCluster) -> bool:
        """Whether it is of the instance ``name``, else of the cluster's cards."""
        instance = instance_named(name)
        return self.product == instance.name if instance else self.card == cluster.machine.name

    def sells(self, cards: int) -> bool:
        """Whether so many cards can be rented together."""
        return cards % self.cards == 0 and (self.most is None or cards <= self.most)


@dataclass(frozen=True)
class _PriceTable:
    offers: tuple[Offer, ...]


@cache
def offers() -> tuple[Offer, ...]:
    """Return the whole list."""
    return shipped_table("prices", _PriceTable).offers


def offers_of(name: str, cluster: AcceleratorCluster, spot: bool) -> list[Offer]:
    """Return the offers for ``cluster``, cheapest first: of the instance ``name``, else of its cards."""
    fitting = [
        offer
        for offer in offers()
        if offer.fits(name, cluster) and offer.sells(cluster.cards) and offer.price(spot) is not None
    ]
    return sorted(fitting, key=lambda offer: offer.price(spot) or 0.0)


NODES = (1, 2, 4, 8, 16, 32, 64, 128)
LEAST_GOODPUT = 0.01  # below it a job does not get through
TOKENS = 1e9  # what costs and times are compared by if the training's length is not known


class Goal(Enum):
    """What the best hardware is."""

    CHEAPEST = "cheapest"
    FASTEST = "fastest"
    FEWEST = "fewest"


@dataclass(frozen=True)
class RentalLimits:
    """What the whole training may take: ``by`` seconds, ``budget`` USD; None: no limit.

    ``spot``: on cards that may be taken away, the mean seconds until a node is.
    """

    goal: Goal
    by: float | None = None
    budget: float | None = None
    spot: float | None = None


@dataclass(frozen=True)
class Choice:
    """Hardware with its fastest layout; ``seconds`` and ``usd`` of the whole training, or of 10⁹ tokens.

    Both count failures (``lost``); of the whole training also the start. ``usd`` is None if the list of
    prices has none for so many of these cards.
    """

    name: str
    cluster: AcceleratorCluster
    candidate: Candidate
    seconds: float
    lost: Goodput
    offer: Offer | None
    usd: float | None

    def within(self, limits: RentalLimits) -> bool:
        """Whether it keeps deadline and budget. Without a price no budget is kept."""
        if limits.by is not None and self.seconds > limits.by:
            return False
        return limits.budget is None or (self.usd is not None and self.usd <= limits.budget)


@dataclass(frozen=True)
class Choices:
    """All hardware that was searched and runs the job; ``best`` keeps the limits, None if nothing does.

    ``whole``: seconds and USD are of the whole training, else of a billion tokens. ``tried``: numbers of
    cards that were searched.
    """

    limits: RentalLimits
    found: tuple[Choice, ...]
    best: Choice | None
    whole: bool
    tried: int

    def by_kind(self) -> list[Choice]:
        """Return the best of each kind of hardware, best first; those within the limits come first."""
        kinds: dict[str, Choice] = {}
        for choice in self._sorted():
            kinds.setdefault(choice.name, choice)
        return list(kinds.values())

    def front(self) -> list[Choice]:
        """Return what nothing else beats in cost and time both, fastest first."""
        front: list[Choice] = []
        for choice in sorted((c for c in self.found if c.usd is not None), key=lambda c: (c.seconds, c.usd)):
            if not front or (choice.usd or 0.0) < (front[-1].usd or 0.0):
                front.append(choice)
        return front

    def _sorted(self) -> list[Choice]:
        return sorted(self.found, key=lambda c: (not c.within(self.limits), *order(c, self.limits.goal)))


def order(choice: Choice, goal: Goal) -> tuple[float, float, float]:
    """Return the sort key of a goal, ties by the next best."""
    usd = float("inf") if choice.usd is None else choice.usd
    if goal is Goal.FASTEST:
        return choice.seconds, usd, choice.cluster.cards
    if goal is Goal.FEWEST:
        return choice.cluster.cards, usd, choice.seconds
    return usd, choice.seconds, choice.cluster.cards


def kinds(hardware: str | None) -> list[str]:
    """Return the kinds to search: the names in ``hardware``, separated by commas, or every card with a price.

    Raises ConfigError for an unknown name.
    """
    if hardware is None:
        return list(dict.fromkeys(offer.card for offer in offers()))
    names = [name.strip() for name in hardware.split(",") if name.strip()]
    for name in names:
        if instance_named(name) is None and not name.endswith((".yaml", ".yml")):
            cluster_of(name)
    return names


def counts(name: str) -> list[str]:
    """Return the hardware to try of a kind: cards of a node, then whole nodes. A number before the name, or a
    YAML, is taken as it is."""
    if name.endswith((".yaml", ".yml")) or re.match(r"\d+x.", name):
        return [name]
    if instance_named(name) is not None:
        return [f"{nodes}x{name}" for nodes in NODES]
    node = card_named(name).cards_per_node
    inside = [n for n in (1, 2, 4, 8, 16, 32) if n < node]
    return [f"{n}x{name}" for n in (*inside, *(node * nodes for nodes in NODES))]


def choose(
    limits: RentalLimits, names: Sequence[str], spec_of: Callable[[AcceleratorCluster], SearchSpec]
) -> Choices:
    """Search layouts on every hardware of ``names``; ``spec_of`` gives the job on a cluster.

    More cards are no longer tried once they do not make the training faster. Raises ConfigError if a limit
    needs the training's length and it is not known, or if nothing runs the job.
    """
    choices: list[Choice] = []
    whole, tried = True, 0
    for name in names:
        before: Choice | None = None
        for hardware in counts(name):
            cluster = cluster_of(hardware)
            if any(offer.fits(name, cluster) for offer in offers()) and not offers_of(
                name, cluster, limits.spot is not None
            ):
                continue  # nobody rents out so many together
            spec = spec_of(cluster)
            whole = bool(spec.steps or spec.tokens)
            tried += 1
            candidate = _fastest(spec)
            if candidate is None:
                continue
            choice = _choice(name, spec, candidate, limits)
            if choice is None:
                continue
            choices.append(choice)
            if before is not None and choice.seconds >= before.seconds:
                break
            before = choice
    if not whole and (limits.by is not None or limits.budget is not None):
        raise ConfigError(codes.PLAN_GOAL_LENGTH("--by" if limits.by else "--budget", "not known"))
    if not tried:
        raise ConfigError(codes.PLAN_GOAL_SPOT("--spot", ", ".join(names)))
    if not choices:
        raise ConfigError(codes.PLAN_GOAL_NOTHING("--goal", limits.goal.value, tried=tried))
    keeping = [choice for choice in choices if choice.within(limits)]
    priced = [c for c in keeping if c.usd is not None] if limits.goal is Goal.CHEAPEST else keeping
    best = min(priced, key=lambda c: order(c, limits.goal), default=None)
    return Choices(limits, tuple(choices), best, whole, tried)


def _fastest(spec: SearchSpec) -> Candidate | None:
    try:
        return fastest(search(spec))
    except ConfigError:  # no layout divides the rows of a step over so many cards
        return None


def _choice(name: str, spec: SearchSpec, candidate: Candidate, limits: RentalLimits) -> Choice | None:
    run, spot = outlook(candidate, spec), limits.spot is not None
    lost = goodput(candidate.work, spec.cluster, run.checkpoint_bytes, limits.spot)
    if lost.share < LEAST_GOODPUT:
        return None
    steps = run.seconds or TOKENS / candidate.work.step_tokens * candidate.step
    seconds = steps / lost.share + (lost.start if run.seconds else 0.0)
    offered = offers_of(name, spec.cluster, spot)
    offer = offered[0] if offered else None
    price = offer.price(spot) if offer else None
    usd = None if price is None else price * spec.cluster.cards * seconds / 3600
    return Choice(name, spec.cluster, candidate, seconds, lost, offer, usd)
