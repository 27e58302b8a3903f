"""Following the events of a shard whose leaders change."""

import contextlib
from collections.abc import Sequence
from typing import Any, cast

import pytest
from grpclib.const import Status

from nstance.admin import client
from nstance.admin.shard import history
from nstance.model.ids import ShardId
from nstance.sim.loop import Machine
from nstance.v1 import operator_pb2
from support.virtual_time import virtually

HERE = ShardId("a")
SIZE = "size 1 → 2"


def event(id: int, message: str) -> Any:
    return operator_pb2.Event(id=id, time_unix_ms=id, group="web", reason="config", message=message)


class Leaders:
    """Answers with what the leader of the moment has, each for so many calls; None: nobody leads."""

    shard = HERE

    def __init__(self, *leaders: Sequence[Any] | None) -> None:
        self._leaders = list(leaders)
        self.asked = 0

    async def call(self, rpc: str, *, group: str, instance_id: str, after_id: int, limit: int) -> Any:
        now = self._leaders[min(self.asked, len(self._leaders) - 1)]
        self.asked += 1
        if now is None:
            raise client.Refusal("no answer", Status.UNAVAILABLE)
        later = [each for each in now if each.id > after_id]
        return operator_pb2.ListEventsResponse(events=later[:limit] if after_id else later[-limit:])

    async def renew_if_due(self) -> None:
        return None


async def followed(clock: Machine, shard: Leaders, *, after: dict[ShardId, int], begin: int = 0) -> list[str]:
    """Until the shard was asked often enough to have told everything."""
    found: list[str] = []
    last = len(shard._leaders) + 2
    coming = history.follow(
        [cast("client.Client", shard)], after=after, begin=begin, group="", tell=lambda _, text: None, clock=clock
    )
    async with contextlib.aclosing(coming):
        async for _, record in coming:
            if record["message"] == "end":
                return found
            found.append(record["message"])
            assert shard.asked < last
    raise AssertionError("unreachable")


END = event(99_000, "end")


@virtually
async def test_what_the_last_leader_told_is_not_told_again_by_the_next(clock: Machine) -> None:
    """A standby numbers what it reads along by its own time."""
    first = [event(1_000, SIZE), event(2_000, "made")]
    second = [event(1_040, SIZE), event(2_040, "made"), event(2_050, "never told"), event(9_000, SIZE)]
    told = await followed(clock, Leaders(first, None, second, [*second, END]), after={HERE: 0})
    assert told == [SIZE, "made", "never told", SIZE]


@virtually
async def test_without_a_change_of_leaders_the_same_may_happen_twice(clock: Machine) -> None:
    first = [event(1_000, SIZE)]
    told = await followed(clock, Leaders(first, [*first, event(1_500, SIZE), END]), after={HERE: 0})
    assert told == [SIZE, SIZE]


@virtually
async def test_after_the_next_leader_has_caught_up_the_same_may_happen_again(clock: Machine) -> None:
    first = [event(1_000, SIZE)]
    later = [*first, event(5_000, SIZE), END]
    assert await followed(clock, Leaders(first, None, first, later), after={HERE: 0}) == [SIZE, SIZE]


@pytest.mark.parametrize(("begin", "wanted"), [(0, ["new"]), (2, ["8", "9", "new"])])
def test_a_shard_that_answers_late_begins_with_as_much_as_was_wished(begin: int, wanted: list[str]) -> None:
    old = [event(number, str(number)) for number in range(1, 10)]

    @virtually
    async def run(clock: Machine) -> None:
        shard = Leaders(None, old, [*old, event(20, "new"), END])
        assert await followed(clock, shard, after={}, begin=begin) == wanted

    run()
