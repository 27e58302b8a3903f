"""Forecasts what happens to the groups of a configuration in a scenario, over hours of virtual time.

The product decides, with the configuration's own timings, over a cloud and agents in memory. Quiet hours are not played:
when nothing but renewals has happened for a while and no event is near, the forecast's clock moves on, and requests are
counted at the rate of the quiet interval. Rounds that repeat are not played either (see `rounds`). The trap: what depends
on age would not happen in hours that are skipped, so nothing is skipped where instances expire.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nstance.config import durations
from nstance.config.checks import provider_rules
from nstance.model.ids import InstanceId
from nstance.model.instance import State
from nstance.sim.forecasting.rounds import RoundEnd, Rounds
from nstance.sim.forecasting.scenarios import SCENARIOS, Event, UserConfig
from nstance.sim.setup import Setup
from nstance.sim.world import World, world

WARM_UP_SECONDS = 600.0  # in which the groups start
BOOT_SECONDS = (20.0, 60.0)
# What happens within a grain is decided together, as on a busy server; it grows with the number of instances.
GRAIN_SECONDS, GRAIN_SECONDS_PER_INSTANCE = 0.05, 4e-5
MIN_POINTS, MAX_POINTS = 240, 2880  # of a forecast that is always quiet, and of one that is always busy
MIN_STEP_SECONDS = 5.0  # between two points
QUIET_SECONDS = 660.0  # without news before time is skipped: longer than any back-off
SHORT_QUIET_SECONDS = 120.0  # where the rate of requests is known and the same instances run as when it was measured
# Dollars per request to object storage, as a large cloud charges.
WRITE_PRICE, READ_PRICE = 5e-6, 4e-7
PRICES = {"create": WRITE_PRICE, "replace": WRITE_PRICE, "list": WRITE_PRICE, "delete": 0.0}  # the others read


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The state at some hour; the last three are totals since the beginning."""

    hour: float
    desired: int
    ready: int
    starting: int
    leaving: int
    created: int
    requests: float
    price: float


@dataclass(slots=True)
class Forecast:
    hours: float
    points: list[Point] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)  # hour and name
    counts: Mapping[str, int] = field(default_factory=dict)
    skipped: float = 0.0  # hours that were quiet
    repeated: float = 0.0  # hours of rounds that repeat

    def lowest(self) -> Point:
        """When the most instances were missing."""
        return min(self.points, key=lambda point: point.ready - point.desired)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    scenario: str
    hours: float
    boot: float | None = None  # seconds until the agent of a VM registers, a quarter more or less
    seed: int = 0
    all_spot: bool = False  # treat every VM as a spot VM
    play_all: bool = False  # skip no hour


def forecast(
    document: dict[str, Any], options: Options, progress: Callable[[float], None] = lambda hours: None
) -> Forecast:
    """`progress` is called with the hours that were played; they are negative while the groups start."""
    boot = options.boot
    setup = Setup(
        servers=2 if options.scenario == "failover-hourly" else 1,
        audited=False,
        acknowledges=1.0,
        boot=_boot_seconds(document) if boot is None else (0.75 * boot, 1.25 * boot),
        desired_groups=UserConfig(document=document, all_spot=options.all_spot),
    )
    with world(options.seed, setup) as w:
        w.random = random.Random(f"forecast-{options.seed}")
        w.loop.grain = max(GRAIN_SECONDS, GRAIN_SECONDS_PER_INSTANCE * _count_instances(document))
        w.begin()
        for step in range(10):
            progress((step / 10 - 1) * WARM_UP_SECONDS / 3600.0)
            w.advance(WARM_UP_SECONDS / 10)
        return _Player(w, options).play(progress)


def _count_instances(document: dict[str, Any]) -> int:
    return sum(group.get("size", 0) for groups in document["groups"].values() for group in groups.values())


def _boot_seconds(document: dict[str, Any]) -> tuple[float, float]:
    """Processes of a local provider start at once, VMs of a cloud take most of a minute."""
    if provider_rules.RULES[document["shard"]["infra"]["provider"]].local:
        return Setup().boot
    timeout = document["shard"].get("garbage_collection", {}).get("registration_timeout")
    longest = min(BOOT_SECONDS[1], durations.parse(timeout) / 2) if isinstance(timeout, str) else BOOT_SECONDS[1]
    return min(BOOT_SECONDS[0], longest), longest


class _Player:
    def __init__(self, w: World, options: Options) -> None:
        self._w = w
        self._play_all = options.play_all
        seconds = self._seconds = options.hours * 3600.0
        self._events = sorted(SCENARIOS[options.scenario](w, seconds), key=lambda event: event.at)
        self._elapsed = 0.0  # seconds of the forecast
        self._busy_until = 0.0
        self._first_counts = Counter(w.counts)
        self._created_before = len(w.auditor.created)
        self._skipped_requests: Counter[str] = Counter()  # in thousandths
        self._rates: dict[str, float] = {}  # requests per second while it is quiet
        self._rates_fleet: tuple[object, ...] | None = None  # what ran when they were measured
        self._rounds = Rounds()
        self._repeated: Counter[str] = Counter()
        self._news = self._read_news()
        self._quiet_since, self._quiet_counts = w.now, Counter(w.counts)
        self._result = Forecast(options.hours)

    def play(self, progress: Callable[[float], None]) -> Forecast:
        self._add_point()
        while self._elapsed < self._seconds:
            progress(self._elapsed / 3600.0)
            if self._can_skip():
                self._skip()
            elif not self._repeat():
                self._advance()
            self._add_point()
        self._result.counts = self._w.counts - self._first_counts + self._repeated
        return self._result

    # ---- one interval

    def _can_skip(self) -> bool:
        quiet = self._w.now - self._quiet_since
        # In this order: going through all agents each time is expensive.
        return (
            quiet >= SHORT_QUIET_SECONDS
            and self._until_event() >= 1.0
            and self._may_leave_out()
            and quiet >= self._required_quiet()
        )

    def _may_leave_out(self) -> bool:
        server = self._w.leader()
        if self._play_all or server is None or server.lead is None or self._elapsed < self._busy_until:
            return False
        policy, offers = server.lead.shard.policy, server.lead.shard.offers
        if offers.count():
            return False  # an exhausted offer is tried again after up to half an hour
        return all(age is None for age in (policy.eligible_age, policy.forced_age, policy.ondemand_age))

    def _required_quiet(self) -> float:
        """Seconds without news before time may be skipped."""
        connected = all(agent.connection is not None for agent in self._w.agents() if agent.alive)
        return SHORT_QUIET_SECONDS if connected and self._rates_fleet == self._fleet() else QUIET_SECONDS

    def _fleet(self) -> tuple[object, ...]:
        """Changes whenever an instance is created or deleted."""
        counts = self._w.counts
        return counts["calls create"], counts["calls delete"], self._running()

    def _until_event(self) -> float:
        """Seconds until the next event, or until the end."""
        return (self._events[0].at if self._events else self._seconds) - self._elapsed

    def _mark_busy(self) -> None:
        self._quiet_since, self._quiet_counts = self._w.now, Counter(self._w.counts)

    def _skip(self) -> None:
        seconds = min(self._seconds / MIN_POINTS, self._until_event())
        quiet = self._w.now - self._quiet_since
        if quiet >= QUIET_SECONDS:
            counts = self._w.counts - self._quiet_counts
            self._rates = {name: n / quiet for name, n in counts.items() if name.startswith("request ")}
            self._rates_fleet = self._fleet()
        for name, rate in self._rates.items():
            self._skipped_requests[name] += round(1000 * rate * seconds)
        self._elapsed += seconds
        self._result.skipped += seconds / 3600.0
        self._rounds.clear()

    def _repeat(self) -> bool:
        """Where rounds repeat, add as many as fit before the next event. Returns whether any did."""
        found = self._rounds.find_repetition() if self._may_leave_out() else None
        if found is None:
            return False
        first, last = found
        seconds = last.at - first.at
        times = int(self._until_event() // seconds)
        if times < 1:
            return False
        for name, number in (last.counts - first.counts).items():
            if name.startswith("request "):
                self._skipped_requests[name] += 1000 * number * times
            else:
                self._repeated[name] += number * times
        points = self._result.points
        start, *shown = points[first.point : last.point + 1]
        for n in range(1, times + 1):
            points.extend(_shift(point, n, shown[-1], start) for point in shown)
        points.pop()  # it is added next
        self._created_before -= times * (shown[-1].created - start.created)
        self._elapsed += times * seconds
        self._result.repeated += times * seconds / 3600.0
        self._rounds.clear()
        return True

    def _advance(self) -> None:
        while self._events and self._until_event() <= 0.0:
            self._start_event(self._events.pop(0))
        quiet = self._w.now - self._quiet_since
        is_quiet = quiet >= MIN_STEP_SECONDS * 12 and self._elapsed >= self._busy_until
        step = max(MIN_STEP_SECONDS, self._seconds / (MIN_POINTS if is_quiet else MAX_POINTS))
        if is_quiet:
            step = min(step, max(MIN_STEP_SECONDS, self._required_quiet() - quiet))
        until = self._elapsed + max(0.001, min(step, self._until_event(), self._seconds - self._elapsed))
        while (seconds := until - self._elapsed) > 0.0:
            self._w.advance(min(MIN_STEP_SECONDS, seconds))
            self._elapsed = until if seconds <= MIN_STEP_SECONDS else self._elapsed + MIN_STEP_SECONDS
            if self._check_news():
                return

    def _check_news(self) -> bool:
        """Returns whether a round has ended that may repeat: its end becomes a point."""
        w, before, news = self._w, self._news, self._read_news()
        if news == before and self._elapsed >= self._busy_until:
            return False
        self._news = news
        self._mark_busy()
        if not any(before[-2:]) or any(news[-2:]):
            return False
        index = len(self._result.points)
        end = RoundEnd(at=w.now, counts=Counter(w.counts), running=self._running(), point=index)
        return self._rounds.on_end(end)

    def _start_event(self, event: Event) -> None:
        self._result.events.append((event.at / 3600.0, event.name))
        self._busy_until = max(self._busy_until, event.at + event.lasts)
        self._mark_busy()
        self._rounds.clear()
        self._w.do(event.act)

    def _read_news(self) -> tuple[object, ...]:
        """Changes whenever something happens that is not routine."""
        counts, server = self._w.counts, self._w.leader()
        numbers = (counts[name] for name in ("request create", "calls create", "calls delete", "terms"))
        return (*numbers, None if server is None else server.name, *self._count_states())

    # ---- points

    def _running(self) -> frozenset[InstanceId]:
        return frozenset(id for id, record in self._w.auditor.records.items() if record.state is State.RUNNING)

    def _count_states(self) -> tuple[int, int, int]:
        """Ready, starting and leaving instances."""
        running, records = State.RUNNING, self._w.auditor.records
        others = [state for record in records.values() if (state := record.state) is not running]
        counts = Counter(others)  # only of the others: hashing thousands of states is slow
        return (
            len(records) - len(others),
            counts[State.PENDING] + counts[State.STARTING],
            counts[State.DRAINING] + counts[State.DELETING],
        )

    def _add_point(self) -> None:
        w, points = self._w, self._result.points
        server = w.leader()
        if server is not None and server.lead is not None:
            desired = sum(group.size for group in server.lead.shard.desired_groups.values())
        else:
            desired = points[-1].desired if points else 0
        ready, starting, leaving = self._count_states()
        counts = w.counts - self._first_counts
        requests = {
            name.removeprefix("request "): counts[name] + self._skipped_requests[name] / 1000
            for name in {*counts, *self._skipped_requests}
            if name.startswith("request ")
        }
        points.append(
            Point(
                hour=self._elapsed / 3600.0,
                desired=desired,
                ready=ready,
                starting=starting,
                leaving=leaving,
                created=len(w.auditor.created) - self._created_before,
                requests=math.fsum(requests.values()),
                price=math.fsum(n * PRICES.get(verb, READ_PRICE) for verb, n in requests.items()),
            )
        )


def _shift(point: Point, times: int, last: Point, first: Point) -> Point:
    """The same point, as many intervals from `first` to `last` later."""
    return replace(
        point,
        hour=point.hour + times * (last.hour - first.hour),
        created=point.created + times * (last.created - first.created),
        requests=point.requests + times * (last.requests - first.requests),
        price=point.price + times * (last.price - first.price),
    )
