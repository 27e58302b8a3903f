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
            raise client.ShardError("no answer", Status.UNAVAILABLE)
        later = [each for each in now if each.id > after_id]
        return operator_pb2.ListEventsResponse(events=later[:limit] if after_id else later[-limit:])

    async def renew_if_due(self) -> None:
        return None


async def followed(clock: Machine, shard: Leaders, *, after: dict[ShardId, int], begin: int = 0) -> list[str]:
    """Until the shard was asked often enough to have told everything."""
    found: list[str] = []
    last = len(shard._leaders) + 2
    coming = history.follow(
        [cast("client.Client", shard)],
        history.EventQuery(limit=begin),
        after=after,
        on_status=lambda _, text: None,
        clock=clock,
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
async def test_the_next_leader_goes_on_where_the_last_one_stopped(clock: Machine) -> None:
    """It has the same events with the same IDs; what happens twice is shown twice."""
    first = [event(1_000, SIZE), event(2_000, "made")]
    second = [*first, event(2_050, "never told"), event(9_000, SIZE)]
    found = await followed(clock, Leaders(first, None, second, [*second, END]), after={HERE: 0})
    assert found == [SIZE, "made", "never told", SIZE]


def test_a_shards_events_stay_in_their_order_when_a_leaders_clock_is_behind() -> None:
    def at(id: int, time: int) -> Any:
        return operator_pb2.Event(id=id, time_unix_ms=time, group="web", message=f"{id}")

    one, other = [at(1, 5_000), at(2, 1_000), at(3, 6_000)], [at(1, 900), at(2, 5_500)]
    found = history.merge_events([(HERE, one), (ShardId("b"), other)], limit=4)
    assert [(each["shard"], each["message"]) for each in found] == [("a", "1"), ("a", "2"), ("b", "2"), ("a", "3")]


@pytest.mark.parametrize(("begin", "wanted"), [(0, ["new"]), (2, ["8", "9", "new"])])
def test_a_shard_that_answers_late_begins_with_as_much_as_was_wished(begin: int, wanted: list[str]) -> None:
    old = [event(number, str(number)) for number in range(1, 10)]

    @virtually
    async def run(clock: Machine) -> None:
        shard = Leaders(None, old, [*old, event(20, "new"), END])
        assert await followed(clock, shard, after={}, begin=begin) == wanted

    run()
