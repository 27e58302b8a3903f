"""Reading the history of a tenant."""

import logging
from collections.abc import Awaitable, Callable

from nstance.model.ids import TenantId
from nstance.server.api import watchers
from nstance.server.cache.cache import CacheUnavailableError, Event
from nstance.server.state.event_log import EventLog
from nstance.v1 import operator_pb2
from nstance.wire import status

log = logging.getLogger(__name__)

MAX_EVENTS = 1_000
DEFAULT_EVENTS = 100
MAX_REASONS = 50
EVENT_FLUSH_SECONDS = 1.0


Events = Callable[..., Awaitable[list[Event]]]  # `Cache.events`


class EventRequests:
    def __init__(self, events: Events, event_log: EventLog) -> None:
        self._events = events
        self._event_log = event_log

    async def list(self, tenant: TenantId, request: operator_pb2.ListEventsRequest) -> operator_pb2.ListEventsResponse:
        if request.limit < 0:
            raise status.invalid("limit", "expected a number above 0, or 0 for the default")
        if request.after_id >= 1 << 63:
            raise status.invalid("after_id", "expected the ID of an event")
        if len(request.reasons) > MAX_REASONS:
            raise status.invalid("reasons", f"expected at most {MAX_REASONS}")
        if not request.after_id:  # a client that follows asks again anyway
            await self._event_log.flush(timeout=EVENT_FLUSH_SECONDS)
        try:
            found = await self._events(
                tenant=tenant,
                group=request.group or None,
                instance=request.instance_id or None,
                reasons=request.reasons,
                after=request.after_id,
                limit=min(request.limit or DEFAULT_EVENTS, MAX_EVENTS),
            )
        except CacheUnavailableError as error:
            log.warning("failed to read events", extra={"error": str(error)})
            raise status.unavailable("failed to read events, try again") from None
        return operator_pb2.ListEventsResponse(events=map(watchers.event_message, found))
