"""The list of prices: what sellers ask for a card and an hour, when, and where that stands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from paceline.plan.hardware.cloud_instances import instance_named
from paceline.plan.hardware.device_catalogue import AcceleratorCluster
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


def is_sold(name: str, cluster: AcceleratorCluster) -> bool:
    """Whether the list has a price for hardware of this kind, whatever the number."""
    return any(offer.fits(name, cluster) for offer in offers())


def offers_of(name: str, cluster: AcceleratorCluster, spot: bool) -> list[Offer]:
    """Return the offers for ``cluster``, cheapest first: of the instance ``name``, else of its cards."""
    fitting = [
        offer
        for offer in offers()
        if offer.fits(name, cluster) and offer.sells(cluster.cards) and offer.price(spot) is not None
    ]
    return sorted(fitting, key=lambda offer: offer.price(spot) or 0.0)
