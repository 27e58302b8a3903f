"""The `prices` block of a shard: what a VM costs an hour, by instance type and market."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from nstance.config.model import scalars
from nstance.config.model.scalars import Block, invalid
from nstance.model import prices

MAX_PRICE = 1_000_000
_NUMBER = {"type": "number", "minimum": 0, "maximum": MAX_PRICE}


def _price(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_PRICE:  # type: ignore[operator]
        raise invalid(f"expected a price per hour from 0 to {MAX_PRICE:,}, found {scalars.describe_type(value)}")
    return value


Price = Annotated[float, BeforeValidator(_price), WithJsonSchema(_NUMBER)]


class MarketPrices(Block):
    """For each market. Leave out one that is not used."""

    on_demand: Price | None = Field(default=None, alias="on-demand")
    spot: Price | None = None

    def by_market(self) -> dict[str, float]:
        found = {prices.ON_DEMAND: self.on_demand, prices.SPOT: self.spot}
        return {market: price for market, price in found.items() if price is not None}


def _market_prices(value: object) -> object:
    """A plain number is the price in every market."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return dict.fromkeys(prices.MARKETS, _price(value))
    return value


TypePrices = Annotated[
    MarketPrices,
    BeforeValidator(_market_prices, json_schema_input_type=Annotated[float, WithJsonSchema(_NUMBER)] | MarketPrices),
]


class PriceList(Block):
    currency: scalars.Label = Field(default="USD", description="shown beside each amount")
    hourly: Mapping[scalars.NonEmptyText, TypePrices] = Field(
        description='instance type to its price per hour, or to one price for each market; "*": all other types'
    )

    def make(self) -> prices.Prices:
        hourly = {
            (market, kind): price for kind, each in self.hourly.items() for market, price in each.by_market().items()
        }
        return prices.Prices(currency=self.currency, hourly=hourly)
