"""Turns a user's configuration into that of a simulated shard."""

import copy
from collections.abc import Mapping
from typing import Any

from nstance.config import jsonc, legacy
from nstance.config.checks.problems import ProblemCollector
from nstance.config.dynamic import DynamicGroups
from nstance.model.ids import GroupKey
from nstance.server.config import configuration
from nstance.sim.desired_groups import CLUSTER
from nstance.sim.forecasting.scenarios import is_spot


def adapt(text: str, *, source: str, agents: int | None, needs_spot: bool = False) -> dict[str, Any]:
    """The configuration with its groups scaled to `agents` instances in total.

    Raises NoConfigurationError, also where `needs_spot` and no group asks for spot VMs."""
    settings = configuration.parse(text.encode("utf-8", "surrogateescape"), shard=None, source=source)
    parsed: Any = jsonc.read(text, source=source).value
    document: dict[str, Any] = copy.deepcopy(legacy.translate(parsed, ProblemCollector())[0])
    document["shard"].pop("id", None)
    # A third of the events to play, with the same results.
    document["shard"].setdefault("leader_election", {})["heartbeat"] = "600ms"
    document["cluster"]["id"] = CLUSTER
    resolved = configuration.resolve(settings, DynamicGroups())
    if not any(r.group.size for r in resolved.values()):
        raise configuration.NoConfigurationError(
            f"{source}: expected a group with a size above 0, found none: there is nothing to forecast"
        )
    if needs_spot and not any(is_spot(r.args) or "spot" in r.group.markets for r in resolved.values()):
        raise configuration.NoConfigurationError(
            f"{source}: expected a group that asks for spot VMs, by markets or by args such as "
            '"InstanceMarketOptions": {"MarketType": "spot"}, found none; --all-spot treats all VMs as spot VMs'
        )
    if agents is not None:
        for key, size in _scale(agents, {key: r.group.size for key, r in resolved.items()}).items():
            document["groups"][key.tenant][key.name]["size"] = size
    templates = document.get("templates", {}).values()
    for template in templates:
        for name in ("files", "checks"):  # simulated instances have neither secrets nor programs
            template.pop(name, None)
    for part in (document.get("defaults", {}), *templates):
        if part.get("userdata", {}).get("source") == "url":
            part["userdata"] = {"source": "inline", "content": ""}
    return document


def _scale(agents: int, sizes: Mapping[GroupKey, int]) -> dict[GroupKey, int]:
    """Sizes with this sum, in proportion; the largest remainders are rounded up."""
    total = sum(sizes.values())
    shares = {key: size * agents // total for key, size in sizes.items()}
    missing = agents - sum(shares.values())
    for key in sorted(sizes, key=lambda key: -(sizes[key] * agents % total))[:missing]:
        shares[key] += 1
    return shares
