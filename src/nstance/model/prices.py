"""What VMs cost an hour, as the configuration of a shard says. Nstance asks no provider for prices."""

from collections.abc import Mapping
from dataclasses import dataclass

ON_DEMAND, SPOT = "on-demand", "spot"
MARKETS = (ON_DEMAND, SPOT)
ANY_TYPE = "*"  # all instance types that are not listed

Pair = tuple[str, str]  # market and instance type


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    currency: str
    hourly: Mapping[Pair, float]

    def of(self, market: str, instance_type: str) -> float | None:
        """None: there is no price. A market that only the provider arguments know counts as on-demand."""
        market = market or ON_DEMAND
        found = self.hourly.get((market, instance_type))
        return self.hourly.get((market, ANY_TYPE)) if found is None else found
