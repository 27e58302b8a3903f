"""What would happen to my groups if: a user's own configuration, a scenario, and hours of virtual time.

The product decides, over a cloud and agents in memory. Timings are the configuration's own; its provider is not called.
Quiet hours are not played: when nothing but renewals has happened for a while and nothing is about to, the clock that is
shown moves on, and the requests of the quiet stretch are counted for it. Nor are rounds that are all alike (see
`forecast_rounds`). The trap: what depends on age would not happen in hours that are left out, so none are where instances
expire.
"""

import copy
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nstance.config import durations, jsonc, legacy
from nstance.config.checks import provider_rules
from nstance.config.checks.problems import ProblemCollector
from nstance.config.dynamic import DynamicGroups
from nstance.model.ids import GroupKey, InstanceId
from nstance.model.instance import State
from nstance.server.config import configuration
from nstance.sim.desired_groups import CLUSTER
from nstance.sim.forecasting.rounds import End, Rounds
from nstance.sim.forecasting.scenarios import SCENARIOS, Given, Happening, is_spot
from nstance.sim.setup import Setup
from nstance.sim.world import World, world

__all__ = ["SCENARIOS", "Forecast", "Point", "adapt", "forecast"]

WARM_UP = 600.0  # the groups come up first
BOOT = (20.0, 60.0)  # seconds
# Seconds: what happens within is decided together, as on a server that has much to do, and the more instances it has.
GRAIN, GRAIN_EACH = 0.05, 4e-5
FEWEST, MOST = 240, 2880  # points of a forecast: while all is quiet, and while something happens
SHORTEST = 5.0  # seconds between two points
REST = 660.0  # seconds without news before quiet counts as quiet: the longest back-off is shorter
CALM = 120.0  # seconds, where it is known what quiet costs and the same instances run as then
# Dollars, as a large cloud asks for them: per request to object storage.
WRITE_PRICE, READ_PRICE = 5e-6, 4e-7
PRICES = {"create": WRITE_PRICE, "replace": WRITE_PRICE, "list": WRITE_PRICE, "delete": 0.0}  # the others read


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """How it is at some hour; the last three count from the beginning."""

    hour: float
    wished: int
    ready: int
    coming: int
    leaving: int
    made: int
    requests: float
    price: float


@dataclass(slots=True)
class Forecast:
    hours: float
    points: list[Point] = field(default_factory=list)
    happenings: list[tuple[float, str]] = field(default_factory=list)  # hours, and what happens then
    counts: Mapping[str, int] = field(default_factory=dict)
    left_out: float = 0.0  # hours that were quiet, and not played
    repeated: float = 0.0  # hours of rounds like those before, and not played

    def lowest(self) -> Point:
        """When the fewest were ready of those that were wished."""
        return min(self.points, key=lambda point: point.ready - point.wished)


def adapt(text: str, *, source: str, agents: int | None, needs_spot: bool = False) -> dict[str, Any]:
    """The configuration for a simulated shard, its groups grown or shrunk to so many instances in all. Raises
    NoConfiguration, also where no group has what the scenario happens to."""
    settings = configuration.parse(text.encode("utf-8", "surrogateescape"), shard=None, source=source)
    written: Any = jsonc.read(text, source=source).value
    document: Any = copy.deepcopy(legacy.translate(written, ProblemCollector())[0])
    document["shard"].pop("id", None)
    # A third of the work, and nothing else changes.
    document["shard"].setdefault("leader_election", {})["heartbeat"] = "600ms"
    document["cluster"]["id"] = CLUSTER
    resolved = configuration.resolve(settings, DynamicGroups())
    total: int = sum(r.group.size for r in resolved.values())
    if not total:
        raise configuration.NoConfigurationError(
            f"{source}: its groups wish for no instance, so nothing can happen to any"
        )
    if needs_spot and not any(is_spot(r.args) for r in resolved.values()):
        raise configuration.NoConfigurationError(
            f"{source}: expected a group whose args ask for spot VMs, such as "
            '"InstanceMarketOptions": {"MarketType": "spot"}, found none; --all-spot plays it as if all did'
        )
    if agents is not None:
        for key, size in _shared_out(agents, {key: r.group.size for key, r in resolved.items()}).items():
            document["groups"][key.tenant][key.name]["size"] = size
    for template in document.get("templates", {}).values():
        for name in ("files", "checks"):  # simulated instances have neither secrets nor programs
            template.pop(name, None)
    for part in (document.get("defaults", {}), *document.get("templates", {}).values()):
        if part.get("userdata", {}).get("source") == "url":
            part["userdata"] = {"source": "inline", "content": ""}
    return dict(document)


def _shared_out(agents: int, sizes: Mapping[GroupKey, int]) -> dict[GroupKey, int]:
    """So many in all, in proportion; what rounding leaves goes to those that it cost most."""
    total = sum(sizes.values())
    shares = {key: size * agents // total for key, size in sizes.items()}
    rest = agents - sum(shares.values())
    for key in sorted(sizes, key=lambda key: -(sizes[key] * agents % total))[:rest]:
        shares[key] += 1
    return shares


def forecast(
    document: dict[str, Any],
    *,
    scenario: str,
    hours: float,
    boot: float | None = None,
    seed: int = 0,
    all_spot: bool = False,
    progress: Callable[[float], None] = lambda hours: None,
) -> Forecast:
    """`boot`: seconds until a VM's agent speaks, a quarter more or less. `all_spot`: the provider may take any VM back,
    whatever the groups' arguments say. `progress` is told how many hours are behind
    us; less than none while the groups come up."""
    setup = Setup(
        servers=2 if scenario == "failover-hourly" else 1,
        audited=False,
        acknowledges=1.0,
        boot=_boot(document) if boot is None else (0.75 * boot, 1.25 * boot),
        desired_groups=Given(document=document, all_spot=all_spot),
    )
    with world(seed, setup) as w:
        w.random = random.Random(f"forecast-{seed}")
        w.loop.grain = max(GRAIN, GRAIN_EACH * _size(document))
        w.begin()
        for step in range(10):
            progress((step / 10 - 1) * WARM_UP / 3600.0)
            w.advance(WARM_UP / 10)
        return _Story(w, scenario, hours * 3600.0).tell(progress)


def _size(document: dict[str, Any]) -> int:
    return sum(group.get("size", 0) for groups in document["groups"].values() for group in groups.values())


def _boot(document: dict[str, Any]) -> tuple[float, float]:
    """How long VMs take until their agents speak: processes here hardly any time, a cloud's most of a minute."""
    if provider_rules.RULES[document["shard"]["infra"]["provider"]].local:
        return Setup().boot
    patience = document["shard"].get("garbage_collection", {}).get("registration_timeout")
    most = min(BOOT[1], durations.parse(patience) / 2) if isinstance(patience, str) else BOOT[1]
    return min(BOOT[0], most), most


class _Story:
    def __init__(self, w: World, scenario: str, seconds: float) -> None:
        self._w = w
        self._seconds = seconds
        self._due = sorted(SCENARIOS[scenario](w, seconds), key=lambda each: each.at)
        self._told = 0.0  # seconds of the story
        self._busy_until = 0.0
        self._began = Counter(w.counts)
        self._made_before = len(w.auditor.made)
        self._quiet: Counter[str] = Counter()  # requests of quiet stretches, in thousandths
        self._costs: dict[str, float] = {}  # requests a second while all is quiet
        self._quiet_with: tuple[object, ...] | None = None  # what was there when that was measured
        self._rounds = Rounds()
        self._repeated: Counter[str] = Counter()
        self._news = self._heard_news()
        self._rest_since, self._rest_counts = w.now, Counter(w.counts)
        self._result = Forecast(seconds / 3600.0)

    def tell(self, progress: Callable[[float], None]) -> Forecast:
        result, w = self._result, self._w
        self._note()
        while self._told < self._seconds:
            progress(self._told / 3600.0)
            if self._may_skip():
                self._skip()
            elif not self._repeat():
                self._play()
            self._note()
        result.counts = w.counts - self._began + self._repeated
        return result

    # ---- one stretch

    def _may_skip(self) -> bool:
        rested = self._w.now - self._rest_since
        # In this order: to go through all agents each time is dear.
        return rested >= CALM and self._until_next() >= 1.0 and self._may_leave_out() and rested >= self._rest()

    def _may_leave_out(self) -> bool:
        server = self._w.leader()
        if server is None or server.lead is None or self._told < self._busy_until:
            return False
        policy = server.lead.shard.policy
        return all(age is None for age in (policy.eligible_age, policy.forced_age, policy.ondemand_age))

    def _rest(self) -> float:
        """Seconds without news before time may be left out."""
        connected = all(agent.line is not None for agent in self._w.agents() if agent.alive)
        return CALM if connected and self._quiet_with == self._there() else REST

    def _there(self) -> tuple[object, ...]:
        """As long as it is the same, nobody has made or deleted anything."""
        counts = self._w.counts
        return counts["calls create"], counts["calls delete"], self._running()

    def _until_next(self) -> float:
        """Seconds until something happens, or the story ends."""
        return (self._due[0].at if self._due else self._seconds) - self._told

    def _skip(self) -> None:
        seconds = min(self._seconds / FEWEST, self._until_next())
        w = self._w
        rested = w.now - self._rest_since
        if rested >= REST:
            counts = w.counts - self._rest_counts
            self._costs = {what: n / rested for what, n in counts.items() if what.startswith("request ")}
            self._quiet_with = self._there()
        for what, number in self._costs.items():
            self._quiet[what] += round(1000 * number * seconds)
        self._told += seconds
        self._result.left_out += seconds / 3600.0
        self._rounds.forget()

    def _repeat(self) -> bool:
        """Where rounds are all alike, as many more as there is time for, if there is for any."""
        alike = self._rounds.alike() if self._may_leave_out() else None
        if alike is None:
            return False
        first, last = alike
        seconds = last.at - first.at
        times = int(self._until_next() // seconds)
        if times < 1:
            return False
        for what, number in (last.counts - first.counts).items():
            if what.startswith("request "):
                self._quiet[what] += 1000 * number * times
            else:
                self._repeated[what] += number * times
        points = self._result.points
        start, *shown = points[first.point : last.point + 1]
        for n in range(1, times + 1):
            points.extend(_later(point, n, shown[-1], start) for point in shown)
        points.pop()  # it is noted next
        self._made_before -= times * (shown[-1].made - start.made)
        self._told += times * seconds
        self._result.repeated += times * seconds / 3600.0
        self._rounds.forget()
        return True

    def _play(self) -> None:
        while self._due and self._until_next() <= 0.0:
            self._happen(self._due.pop(0))
        w = self._w
        rested = w.now - self._rest_since
        resting = rested >= SHORTEST * 12 and self._told >= self._busy_until
        step = max(SHORTEST, self._seconds / (FEWEST if resting else MOST))
        if resting:
            step = min(step, max(SHORTEST, self._rest() - rested))
        until = self._told + max(0.001, min(step, self._until_next(), self._seconds - self._told))
        while (seconds := until - self._told) > 0.0:
            w.advance(min(SHORTEST, seconds))
            self._told = until if seconds <= SHORTEST else self._told + SHORTEST
            if self._listen():
                return

    def _listen(self) -> bool:
        """Says whether a round has ended that may be one of many: then its end is a point."""
        w, before, news = self._w, self._news, self._heard_news()
        if news == before and self._told >= self._busy_until:
            return False
        self._news = news
        self._rest_since, self._rest_counts = w.now, Counter(w.counts)
        if not any(before[-2:]) or any(news[-2:]):
            return False
        number = len(self._result.points)
        return self._rounds.ended(End(at=w.now, counts=Counter(w.counts), running=self._running(), point=number))

    def _happen(self, happening: Happening) -> None:
        self._result.happenings.append((happening.at / 3600.0, happening.name))
        self._busy_until = max(self._busy_until, happening.at + happening.lasts)
        self._rest_since, self._rest_counts = self._w.now, Counter(self._w.counts)
        self._rounds.forget()
        self._w.do(happening.act)

    def _heard_news(self) -> tuple[object, ...]:
        """Differs from the last one if anything has happened in between that is not routine."""
        counts, server = self._w.counts, self._w.leader()
        told = ("request create", "calls create", "calls delete", "terms")
        return (*(counts[what] for what in told), None if server is None else server.name, *self._states())

    # ---- what is seen of it

    def _running(self) -> frozenset[InstanceId]:
        return frozenset(id for id, record in self._w.auditor.fold.items() if record.state is State.RUNNING)

    def _states(self) -> tuple[int, int, int]:
        running, records = State.RUNNING, self._w.auditor.fold
        others = [state for record in records.values() if (state := record.state) is not running]
        found = Counter(others)  # to hash the states of all of them takes longer than all the rest
        return (
            len(records) - len(others),
            found[State.PENDING] + found[State.STARTING],
            found[State.DRAINING] + found[State.DELETING],
        )

    def _note(self) -> None:
        w, points = self._w, self._result.points
        server = w.leader()
        if server is not None and server.lead is not None:
            wished = sum(group.size for group in server.lead.shard.desired_groups.values())
        else:
            wished = points[-1].wished if points else 0
        ready, coming, leaving = self._states()
        counts = w.counts - self._began
        requests = {
            what.removeprefix("request "): counts[what] + self._quiet[what] / 1000
            for what in {*counts, *self._quiet}
            if what.startswith("request ")
        }
        prices = (n * PRICES.get(verb, READ_PRICE) for verb, n in requests.items())
        points.append(
            Point(
                hour=self._told / 3600.0,
                wished=wished,
                ready=ready,
                coming=coming,
                leaving=leaving,
                made=len(w.auditor.made) - self._made_before,
                requests=math.fsum(requests.values()),
                price=math.fsum(prices),
            )
        )


def _later(point: Point, times: int, last: Point, first: Point) -> Point:
    """The same point so many stretches later, each like the one from the first to the last."""
    return replace(
        point,
        hour=point.hour + times * (last.hour - first.hour),
        made=point.made + times * (last.made - first.made),
        requests=point.requests + times * (last.requests - first.requests),
        price=point.price + times * (last.price - first.price),
    )
