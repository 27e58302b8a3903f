"""Asks the shard for a decision on behalf of a caller, who does not wait for ever."""

import asyncio

from nstance.model import events as ev
from nstance.model.decision import Rejection
from nstance.model.ids import GroupKey
from nstance.objects import journal
from nstance.server.state.inbox import OverloadedError
from nstance.server.state.shard import Shard
from nstance.wire import status

ANSWER_TIMEOUT_SECONDS = 20.0


async def ask(shard: Shard, event: ev.Event, *, key: GroupKey | None = None) -> Rejection | None:
    """Returns when what follows from the event is in the journal. Raises UNAVAILABLE: the caller may try again."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            return await shard.ask(event, key=key)
    except (journal.DeposedError, OverloadedError) as problem:
        raise status.unavailable(str(problem)) from None
    except TimeoutError:
        raise status.unavailable("failed to store the request in time, try again") from None
