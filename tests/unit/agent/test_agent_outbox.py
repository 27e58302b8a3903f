import asyncio

from nstance.agent.outbox import Outbox
from nstance.v1 import agent_pb2

SHUTDOWN = agent_pb2.Notice(kind=agent_pb2.Notice.SHUTDOWN)
SPOT = agent_pb2.Notice(kind=agent_pb2.Notice.SPOT_TERMINATION, deadline_unix_ms=5)


async def taken(outbox: Outbox) -> list[str]:
    """What it has to say now."""
    kinds = []
    while True:
        waiting = asyncio.ensure_future(outbox.next())
        await asyncio.sleep(0)
        if not waiting.done():
            waiting.cancel()
            return kinds
        kinds.append(str(waiting.result().WhichOneof("kind")))
        if kinds[-1] == "goodbye":
            return kinds


async def test_notices_overtake_reports_and_goodbye_is_last() -> None:
    outbox = Outbox()
    outbox.set_report(agent_pb2.HealthReport(sequence=1))
    outbox.add_notice(SPOT)
    outbox.add_notice(SHUTDOWN)
    outbox.set_goodbye(agent_pb2.Goodbye.SHUTDOWN)
    assert await taken(outbox) == ["notice", "notice", "goodbye"]


async def test_a_newer_report_replaces_one_that_could_not_leave() -> None:
    outbox = Outbox()
    for sequence in (1, 2, 3):
        outbox.set_report(agent_pb2.HealthReport(sequence=sequence))
    assert (await outbox.next()).report.sequence == 3
    assert await taken(outbox) == []


async def test_notices_are_sent_once_on_each_stream() -> None:
    outbox = Outbox()
    outbox.add_notice(SPOT)
    outbox.add_notice(SPOT)
    assert await taken(outbox) == ["notice"]
    outbox.add_notice(SPOT)
    assert await taken(outbox) == []
    outbox.on_stream_open()
    assert await taken(outbox) == ["notice"]


async def test_a_notice_that_changed_is_sent_again() -> None:
    outbox = Outbox()
    outbox.add_notice(SPOT)
    await outbox.next()
    outbox.add_notice(agent_pb2.Notice(kind=agent_pb2.Notice.SPOT_TERMINATION, deadline_unix_ms=9))
    assert (await outbox.next()).notice.deadline_unix_ms == 9


async def test_whoever_waits_is_woken() -> None:
    outbox = Outbox()
    waiting = asyncio.ensure_future(outbox.next())
    await asyncio.sleep(0)
    outbox.add_notice(SHUTDOWN)
    assert (await asyncio.wait_for(waiting, 5)).notice == SHUTDOWN
