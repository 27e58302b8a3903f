"""Who is admitted: asked of storage once in a while, and never guessed."""

import asyncio
from typing import Any, cast

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance.authority.operators import Operators
from nstance.model.ids import ClusterId, OperatorId, TenantId
from nstance.objects import errors
from nstance.pki import names
from nstance.server.api import admission
from nstance.server.api.admission import Admission
from nstance.server.waits import WAITS

WHO = names.Operator(ClusterId("demo"), TenantId("acme"), OperatorId("opr-01jw51srryegh9snf9cmeh3k4q"))
OTHER = names.Operator(ClusterId("demo"), TenantId("acme"), OperatorId("opr-01jw51srryegh9snf9cmeh3k4r"))


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Storage:
    """Answers as told, and counts."""

    def __init__(self) -> None:
        self.registered = {WHO, OTHER}
        self.asked = 0
        self.silent = False

    async def is_registered(self, who: names.Operator) -> bool:
        self.asked += 1
        await asyncio.sleep(0)
        if self.silent:
            raise errors.UnavailableError("no answer")
        return who in self.registered


class World:
    def __init__(self) -> None:
        self.storage, self.clock = Storage(), Clock()
        self.admission = Admission(cast(Operators, self.storage), cast(Any, self.clock))

    async def verdict(self, who: names.Operator = WHO) -> Status:
        try:
            await self.admission.admit(who)
        except GRPCError as refused:
            return refused.status
        return Status.OK


async def test_storage_is_asked_once_for_many_calls() -> None:
    world = World()
    assert await asyncio.gather(*(world.verdict() for _ in range(50))) == [Status.OK] * 50
    assert world.storage.asked == 1


async def test_a_revocation_elsewhere_is_known_within_a_minute() -> None:
    world = World()
    assert await world.verdict() is Status.OK
    world.storage.registered.clear()
    assert await world.verdict() is Status.OK
    world.clock.now = 60.0 - admission.READ_TIMEOUT_SECONDS
    assert await world.verdict() is Status.PERMISSION_DENIED


async def test_an_open_watch_of_a_revoked_operator_ends_within_a_minute() -> None:
    """Whatever else has asked about it just before the revocation."""
    for since in range(int(WAITS.watch_admission_interval)):
        world = World()
        assert await world.verdict() is Status.OK
        world.storage.registered.clear()
        looks = [since + WAITS.watch_admission_interval * number for number in range(4)]
        for look in looks:
            world.clock.now = look
            try:
                await world.admission.admit(WHO, watching=True)
            except GRPCError:
                break
        assert world.clock.now + admission.READ_TIMEOUT_SECONDS < 60.0
    assert world.storage.asked == 2


async def test_not_knowing_is_neither_yes_nor_no() -> None:
    world = World()
    assert await world.verdict() is Status.OK
    world.storage.silent = True
    world.clock.now = 100.0
    assert [await world.verdict() for _ in range(3)] == [Status.OK] * 3
    assert world.storage.asked == 2  # it is left alone for a while
    assert await world.verdict(OTHER) is Status.UNAVAILABLE
    world.clock.now += admission.RETRY_SECONDS
    world.storage.silent = False
    world.storage.registered = {OTHER}
    assert await world.verdict() is Status.PERMISSION_DENIED
    assert await world.verdict(OTHER) is Status.OK


async def test_revoked_here_is_final_and_ends_its_connections() -> None:
    class Connection:
        aborted = False

        def __init__(self, identity: names.Operator) -> None:
            self.identity = identity

        def abort(self) -> None:
            self.aborted = True

    world = World()
    connections = [Connection(WHO), Connection(OTHER)]
    world.admission._connections = lambda: cast(Any, connections)
    asking = asyncio.create_task(world.verdict())
    await asyncio.sleep(0)
    world.admission.revoke(WHO)  # while storage is being asked, and says yes
    assert await asking is Status.PERMISSION_DENIED
    assert [connection.aborted for connection in connections] == [True, False]
    world.clock.now = 1_000.0
    assert await world.verdict() is Status.PERMISSION_DENIED
    assert await world.verdict(OTHER) is Status.OK


async def test_registrations_are_not_kept_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_REGISTRATIONS", 1)
    world = World()
    for _ in range(2):
        assert await world.verdict(WHO) is Status.OK
        assert await world.verdict(OTHER) is Status.OK
    assert world.storage.asked == 4
