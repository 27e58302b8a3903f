"""Never two leaders, whatever the clocks, the network and the server do; and never none for long."""

import asyncio
import contextlib
import copy
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from nstance.kube import errors, kinds
from nstance.kube.lease import LEASE_NAME, Election, LeadershipLostError, LeaseTimes, identity
from nstance.kube.port import Kube, Object
from nstance.sim.loop import Machine, VirtualLoop
from nstance.sim.rng import SeededRng
from support.virtual_time import virtually


class Server:
    """Keeps one Lease, with versions. `fault` may raise before a call is done, or afterwards."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.version = 0
        self.writes = 0

    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        return cast(dict[str, Any], self.lease["spec"])

    def write(self, body: Object) -> Object:
        self.version += 1
        self.writes += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)


Fault = Callable[[str], Exception | None]


class FaultyKube:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.before: Fault = lambda verb: None
        self.after: Fault = lambda verb: None
        self.delay: Callable[[], float] = lambda: 0.01
        self.hang = False

    async def _pass(self, verb: str, fault: Fault) -> None:
        await asyncio.sleep(self.delay())
        if self.hang:
            await asyncio.Event().wait()
        problem = fault(verb)
        if problem is not None:
            raise problem

    async def get(self, kind: kinds.Kind, name: str, *, namespace: str = "") -> Object:
        assert (kind, name, namespace) == (kinds.LEASE, LEASE_NAME, "here")
        await self._pass("get", self.before)
        if self.server.lease is None:
            raise errors.NotFoundError(name)
        return copy.deepcopy(self.server.lease)

    async def create(self, kind: kinds.Kind, body: Object, *, namespace: str = "") -> Object:
        await self._pass("create", self.before)
        if self.server.lease is not None:
            raise errors.AlreadyExistsError(LEASE_NAME)
        made = self.server.write(body)
        await self._pass("create", self.after)
        return made

    async def replace(self, kind: kinds.Kind, body: Object) -> Object:
        await self._pass("replace", self.before)
        if self.server.lease is None:
            raise errors.NotFoundError(LEASE_NAME)
        if body["metadata"]["resourceVersion"] != self.server.lease["metadata"]["resourceVersion"]:
            raise errors.ConflictError(LEASE_NAME)
        made = self.server.write(body)
        await self._pass("replace", self.after)
        return made


SLOW = LeaseTimes(duration=15.0, deadline=10.0, renew=2.0, retry=2.0)  # as most controllers have it


def election(
    server: Server | FaultyKube, clock: Machine, name: str = "a", seed: int = 1, times: LeaseTimes = SLOW
) -> Election:
    client = server if isinstance(server, FaultyKube) else FaultyKube(server)
    rng = SeededRng(seed)
    return Election(cast(Kube, client), namespace="here", identity=name, clock=clock, rng=rng, times=times)


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_leader_is_followed_within_five_seconds(seed: int) -> None:
    @virtually
    async def play(clock: Machine) -> None:
        server, rng = Server(), SeededRng(seed)
        one, two = (election(server, clock, name, seed, LeaseTimes()) for name in "ab")
        await one.acquire()
        renewing = asyncio.ensure_future(one.renew())
        following = asyncio.ensure_future(two.acquire())
        await clock.sleep(rng.uniform(5.0, 10.0))
        assert not following.done()
        renewing.cancel()  # killed: it writes nothing more and releases nothing
        killed = clock.loop.time()
        await following
        assert clock.loop.time() - killed <= 4.8
        assert clock.loop.time() - killed >= LeaseTimes().duration - LeaseTimes().renew - 0.1

    play()


@pytest.mark.parametrize("times", [{"duration": 3.0}, {"deadline": 0.5}, {"retry": 0.0}, {"renew": 0.0}])
def test_times_that_allow_two_leaders_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lease"):
        LeaseTimes(**times)


@virtually
async def test_a_request_that_hangs_does_not_cost_the_lease(clock: Machine) -> None:
    """Its connection may be dead. The next request has another one."""
    client = FaultyKube(Server())
    one = election(client, clock, times=LeaseTimes())
    await one.acquire()
    renewing = asyncio.ensure_future(one.renew())
    await clock.sleep(5.0)
    client.hang = True
    await clock.sleep(LeaseTimes().renew + LeaseTimes().attempt / 2)
    client.hang = False
    await clock.sleep(5.0)
    assert one.leading
    assert not renewing.done()
    renewing.cancel()


@virtually
async def test_the_first_one_leads_and_says_so_as_client_go_does(clock: Machine) -> None:
    server = Server()
    one = election(server, clock)
    await one.acquire()
    assert one.leading
    spec = server.spec()
    assert set(spec) == {"holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"}
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 15, 0)
    assert spec["acquireTime"].endswith("Z")
    assert len(spec["renewTime"]) == len("2026-01-01T00:00:00.000000Z")


@virtually
async def test_renewals_keep_the_time_of_acquisition(clock: Machine) -> None:
    server = Server()
    one = election(server, clock)
    await one.acquire()
    first = dict(server.spec())
    keeping = asyncio.ensure_future(one.renew())
    await clock.sleep(60)
    assert not keeping.done()
    keeping.cancel()
    assert server.spec()["acquireTime"] == first["acquireTime"]
    assert server.spec()["renewTime"] > first["renewTime"]
    assert 25 <= server.writes <= 32


@virtually
async def test_a_silent_leader_is_replaced_after_the_time_seen_locally(clock: Machine) -> None:
    """The other's clock is a year ahead, which means nothing."""
    server = Server()
    far = Machine("far", clock.loop, wall=1.7e9 + 365 * 86400)
    await election(server, far).acquire()
    two = election(server, clock, "b")
    await clock.sleep(100)  # long silent; but b has not seen that
    began = clock.loop.time()
    await two.acquire()
    assert 15.0 <= clock.loop.time() - began <= 15.0 + 5.0
    assert (server.spec()["holderIdentity"], server.spec()["leaseTransitions"]) == ("b", 1)


@virtually
async def test_a_living_leader_is_not_replaced(clock: Machine) -> None:
    server = Server()
    one = election(server, clock)
    await one.acquire()
    keeping = asyncio.ensure_future(one.renew())
    waiting = asyncio.ensure_future(election(server, clock, "b").acquire())
    await clock.sleep(600)
    assert not keeping.done()
    assert not waiting.done()
    keeping.cancel()
    waiting.cancel()


@pytest.mark.parametrize("fault", ["unavailable", "hang", "unknown"])
def test_a_leader_that_cannot_renew_stops_before_another_may_start(fault: str) -> None:
    @virtually
    async def scene(clock: Machine) -> None:
        server = Server()
        client = FaultyKube(server)
        one = election(client, clock)
        await one.acquire()
        began = clock.loop.time()
        if fault == "hang":
            client.hang = True
        elif fault == "unavailable":
            client.before = lambda verb: errors.UnavailableError("down")
        else:
            client.before = lambda verb: errors.UnknownOutcomeError("lost")
        with pytest.raises(LeadershipLostError, match="not renewed"):
            await one.renew()
        assert clock.loop.time() - began <= 10.01
        assert not one.leading

    scene()


@virtually
async def test_a_short_outage_is_survived(clock: Machine) -> None:
    server = Server()
    client = FaultyKube(server)
    one = election(client, clock)
    await one.acquire()
    keeping = asyncio.ensure_future(one.renew())
    client.before = lambda verb: errors.UnavailableError("down")
    await clock.sleep(7)
    client.before = lambda verb: None
    await clock.sleep(60)
    assert not keeping.done()
    keeping.cancel()


@virtually
async def test_a_write_whose_answer_was_lost_is_no_loss(clock: Machine) -> None:
    server = Server()
    client = FaultyKube(server)
    client.after = lambda verb: errors.UnknownOutcomeError("applied, and not told")
    one = election(client, clock)
    acquiring = asyncio.ensure_future(one.acquire())
    await clock.sleep(1)
    client.after = lambda verb: None
    await acquiring
    assert server.spec()["leaseTransitions"] == 0
    keeping = asyncio.ensure_future(one.renew())
    client.after = lambda verb: errors.UnknownOutcomeError("again")
    await clock.sleep(3)
    client.after = lambda verb: None
    await clock.sleep(30)
    assert not keeping.done()
    keeping.cancel()


@virtually
async def test_a_leader_that_was_suspended_stops(clock: Machine) -> None:
    """Its monotonic clock stood still, so it is another one that tells."""
    server = Server()
    one = election(server, clock)
    await one.acquire()
    clock._frozen += 60.0
    real = clock.boot
    clock.boot = lambda: real() + 60.0  # type: ignore[method-assign]
    with pytest.raises(LeadershipLostError):
        await one.renew()
    assert server.writes == 1


@virtually
async def test_a_suspension_before_it_led_does_not_matter(clock: Machine) -> None:
    real = clock.boot
    clock.boot = lambda: real() + 3600.0  # type: ignore[method-assign]
    one = election(Server(), clock)
    await one.acquire()
    keeping = asyncio.ensure_future(one.renew())
    await clock.sleep(60)
    assert not keeping.done()
    keeping.cancel()


@virtually
async def test_a_lease_that_was_taken_is_lost_at_once(clock: Machine) -> None:
    server = Server()
    one = election(server, clock)
    await one.acquire()
    taken = copy.deepcopy(server.lease)
    assert taken is not None
    taken["spec"]["holderIdentity"] = "thief"
    server.write(taken)
    began = clock.loop.time()
    with pytest.raises(LeadershipLostError, match="thief"):
        await one.renew()
    assert clock.loop.time() - began < 2.5
    assert server.spec()["holderIdentity"] == "thief"


@virtually
async def test_a_lease_that_was_touched_or_deleted_is_kept(clock: Machine) -> None:
    server = Server()
    one = election(server, clock)
    await one.acquire()
    keeping = asyncio.ensure_future(one.renew())
    assert server.lease is not None
    server.write({**server.lease, "metadata": {**server.lease["metadata"], "labels": {"a": "b"}}})
    await clock.sleep(5)
    assert server.lease["metadata"]["labels"] == {"a": "b"}
    server.lease = None
    await clock.sleep(5)
    assert not keeping.done()
    assert server.spec()["holderIdentity"] == "a"
    keeping.cancel()


@virtually
async def test_a_released_lease_is_taken_without_waiting(clock: Machine) -> None:
    server = Server()
    one = election(server, clock)
    await one.acquire()
    waiting = asyncio.ensure_future(election(server, clock, "b").acquire())
    await clock.sleep(10)
    began = clock.loop.time()
    await one.release()
    await waiting
    assert clock.loop.time() - began < 5.0
    assert (server.spec()["holderIdentity"], server.spec()["leaseTransitions"]) == ("b", 1)


@virtually
async def test_the_work_ends_before_the_lease_is_released(clock: Machine) -> None:
    server = Server()
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await clock.sleep(20)  # longer than the lease: it has to be kept meanwhile
            ended.append(server.spec()["holderIdentity"])

    running = asyncio.ensure_future(election(server, clock).run(work))
    await clock.sleep(5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["a"]
    assert server.spec()["holderIdentity"] == ""


@virtually
async def test_the_works_own_end_releases(clock: Machine) -> None:
    server = Server()

    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await election(server, clock).run(fails)
    assert server.spec()["holderIdentity"] == ""


@virtually
async def test_losing_cancels_the_work_and_raises(clock: Machine) -> None:
    server = Server()
    client = FaultyKube(server)
    cancelled: list[float] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(clock.loop.time())
            await clock.sleep(3600)  # does not end in time; that must not hold up the process's end

    running = asyncio.ensure_future(election(client, clock).run(work))
    await clock.sleep(1)
    client.hang = True
    with pytest.raises(LeadershipLostError):
        await running
    assert cancelled[0] <= 11.0
    assert clock.loop.time() <= 15.0, "others may start from here on"
    assert server.spec()["holderIdentity"] == "a", "what was lost is not released"


def test_identities_differ_between_processes() -> None:
    assert identity("host", SeededRng(1)) != identity("host", SeededRng(2))
    assert identity("host", SeededRng(1)).startswith("host_")


@pytest.mark.parametrize("seed", range(15))
def test_never_two_leaders(seed: int) -> None:
    """Three candidates that are slow, cut off, stopped and drift, over hours; and somebody leads at the end."""
    rng = random.Random(seed)
    loop = VirtualLoop(seed)
    server = Server()
    leaders: set[str] = set()
    most: list[int] = [0]
    terms: list[str] = []

    async def candidate(name: str, clock: Machine, client: FaultyKube) -> None:
        life = 0
        while True:
            life += 1
            me = f"{name}-{life}"

            async def work(me: str = me) -> None:
                leaders.add(me)
                terms.append(me)
                most[0] = max(most[0], len(leaders))
                try:
                    await asyncio.Event().wait()
                finally:
                    leaders.discard(me)

            with contextlib.suppress(LeadershipLostError):
                await election(client, clock, me, seed).run(work)
            await clock.sleep(1)

    async def fault_model(clients: list[FaultyKube]) -> None:
        for _ in range(200):
            await asyncio.sleep(rng.uniform(1, 40))
            client = rng.choice(clients)
            client.hang = False
            client.before = client.after = lambda verb: None
            slowness = rng.choice([0.01, 0.5, 3.0])
            client.delay = lambda slowness=slowness: rng.uniform(0, slowness)  # type: ignore[misc]
            match rng.randrange(4):
                case 0:
                    client.before = lambda verb: errors.UnavailableError("cut")
                case 1:
                    client.after = lambda verb: (
                        errors.UnknownOutcomeError("answer lost") if rng.random() < 0.5 else None
                    )
                case 2:
                    client.hang = True
        for client in clients:
            client.hang = False
            client.before = client.after = lambda verb: None
            client.delay = lambda: 0.01

    async def scene() -> None:
        clients = [FaultyKube(server) for _ in range(3)]
        clocks = [Machine(f"m{n}", loop, rate=rng.uniform(0.98, 1.02), wall=rng.uniform(0, 2e9)) for n in range(3)]
        tasks = [asyncio.ensure_future(candidate(f"c{n}", clocks[n], clients[n])) for n in range(3)]
        await fault_model(clients)
        await asyncio.sleep(60)
        assert len(leaders) == 1
        assert not any(task.done() for task in tasks)

    try:
        loop.run_until_complete(scene())
    finally:
        loop.finish()
    assert most[0] == 1
    assert len(terms) > 3, "the weather was too fine to prove anything"
