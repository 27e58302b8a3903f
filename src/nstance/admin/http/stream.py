"""Server-sent events: single events with filters, and the whole fleet.

The ID of each message says how far every shard was read, so a browser that reconnects misses nothing and gets nothing
twice. A reader that does not read is disconnected.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from nstance.admin import errors
from nstance.admin.client import Client
from nstance.admin.http import access
from nstance.admin.http.fleet import Fleet, OverrunError
from nstance.admin.http.frames import Positions, encode, format_positions, frame, message, parse_positions
from nstance.admin.shard import fanout, history, records
from nstance.admin.shard.history import EventQuery
from nstance.admin.shard.records import Record
from nstance.model.ids import ShardId

MAX_NOTICES = 100
MAX_MISSED = 1_000  # events of a shard that a reconnect gets at once
WRITE_SECONDS = 20.0
RETRY_MILLISECONDS = 500  # how soon a browser reconnects


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    streams: int = 512
    heartbeat_seconds: float = 10.0


LIMITS = Limits()


class TooManyStreamsError(Exception):
    """No more streams are served now."""


class Streams:
    def __init__(self, fleet: Fleet, limits: Limits) -> None:
        self._fleet = fleet
        self._limits = limits
        self._open = 0

    def count_open(self) -> int:
        return self._open

    async def serve(self, request: web.Request, clients: Sequence[Client], query: EventQuery) -> web.StreamResponse:
        """Events as they happen, filtered."""
        with self._counted():
            response = _response()
            with contextlib.suppress(ConnectionError, TimeoutError, OverrunError):  # the reader is gone or too slow
                await response.prepare(request)
                with self._fleet.followed() as live:
                    reader = _EventReader(
                        response, clients, query, parse_positions(request.headers.get("Last-Event-ID", ""))
                    )
                    await reader.start()
                    while True:
                        entry = await live.take(timeout=reader.seconds_to(self._limits.heartbeat_seconds))
                        if entry is None:
                            await reader.write(": still here\n\n")
                        elif isinstance(entry, tuple):
                            await reader.on_event(*entry)
                        else:
                            feed = self._fleet.feeds[entry]
                            await reader.on_status(entry, feed.record()["error"])
            return response

    async def serve_fleet(self, request: web.Request) -> web.StreamResponse:
        """A snapshot of everything, then all changes. After a reconnect with the events that were missed."""
        with self._counted():
            response = _response()
            positions = parse_positions(request.headers.get("Last-Event-ID", ""))
            with contextlib.suppress(ConnectionError, TimeoutError, OverrunError):
                await response.prepare(request)
                missed, incomplete = await self._missed(positions)
                with self._fleet.view() as (snapshot, changes):
                    # Between reading what was missed and here events may have come; the snapshot has them too, and the
                    # page drops what it has seen by its ID.
                    head = f"retry: {RETRY_MILLISECONDS}\n"
                    if missed or incomplete:
                        body = encode({"events": missed, "incomplete": incomplete})
                        await _write(response, head.encode() + frame("missed", body))
                    await _write(response, head.encode() + snapshot)
                    while True:
                        entry = await changes.take(timeout=self._limits.heartbeat_seconds)
                        if entry is None:
                            await _write(response, b": still here\n\n")
                        else:
                            await _write(response, entry)
            return response

    async def _missed(self, positions: Positions) -> tuple[list[Record], list[ShardId]]:
        """Events after these positions, and the shards of which there may be others."""
        missed, unknown = self._fleet.events_after(positions)
        incomplete = [feed.shard for feed in unknown if feed.last_event is None]  # these follow when the shard is read
        answers = await fanout.call_each(
            [feed.client for feed in unknown if feed.last_event is not None],
            lambda client: client.call("ListEvents", after_id=max(1, positions[client.shard]), limit=MAX_MISSED),
        )
        incomplete += [shard for shard, _ in answers.failures]
        for shard, answer in answers.results:
            missed += [records.NUMBERED_EVENT.fill(each, shard=shard) for each in answer.events]
            if len(answer.events) >= MAX_MISSED:
                incomplete.append(shard)
        return missed, incomplete

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        if self._open >= self._limits.streams:
            raise TooManyStreamsError(f"{self._limits.streams} streams are already open, try again later")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


class _EventReader:
    """One reader of events: how far it has read each shard."""

    def __init__(
        self, response: web.StreamResponse, clients: Sequence[Client], query: EventQuery, seen: dict[ShardId, int]
    ) -> None:
        self._response = response
        self._clients = {client.shard: client for client in clients}
        self._query = query
        self._seen = {shard: id for shard, id in seen.items() if shard in self._clients}
        self._notices: deque[str] = deque(maxlen=MAX_NOTICES)  # about shards, to be sent with the next write
        self._problems: dict[ShardId, str | None] = {}
        self._loop = asyncio.get_running_loop()
        self._wrote_at = self._loop.time()

    def seconds_to(self, heartbeat: float) -> float:
        """Since the last write: entries that are not for this reader do not tell its client that it is connected."""
        return max(0.0, self._wrote_at + heartbeat - self._loop.time())

    async def start(self) -> None:
        known = [client for shard, client in self._clients.items() if shard in self._seen]
        for shard, client in self._clients.items():
            if shard not in self._seen:
                await self._send_latest(client)
        await self.write(
            f"id: {format_positions(self._seen)}\n\n" if self._seen else ""
        )  # a reconnect continues from here
        for client in known:
            await self._send_missed(client)

    async def on_event(self, shard: ShardId, id: int, record: Record) -> None:
        if shard not in self._clients or id <= self._seen.get(shard, 0) or not self._is_wanted(record):
            return
        await self.write(self._message_of(record, id))

    async def on_status(self, shard: ShardId, problem: str | None) -> None:
        if shard not in self._clients or problem == self._problems.get(shard):
            return
        self._problems[shard] = problem
        if problem is None:
            self._notices.append(message("shard", {"shard": shard, "message": "answers again"}))
            if shard not in self._seen:
                await self._send_latest(self._clients[shard])
        else:
            self._notices.append(message("shard", {"shard": shard, "message": f"{problem}; retrying"}))
        await self.write("")

    async def write(self, text: str) -> None:
        text += "".join(self._notices)
        self._notices.clear()
        if text:
            await _write(self._response, text.encode())
            self._wrote_at = self._loop.time()

    def _is_wanted(self, record: Record) -> bool:
        query = self._query
        return (
            (not query.group or record["group"] == query.group)
            and (not query.instance or record["instance_id"] == query.instance)
            and (not query.reasons or record["reason"] in query.reasons)
        )

    def _message_of(self, record: Record, id: int) -> str:
        self._seen[record["shard"]] = id
        return message(None, self._shown(record), id=format_positions(self._seen))

    def _shown(self, record: Record) -> Record:
        return record if self._query.numbered else {key: record[key] for key in record if key not in ("id", "trouble")}

    async def _send_missed(self, client: Client) -> None:
        while True:
            answers = await fanout.call_each([client], self._read_missed)
            self._note_failures(answers)
            found = [event for _, events in answers.results for event in events]
            await self.write(
                "".join(
                    self._message_of(records.NUMBERED_EVENT.fill(each, shard=client.shard), each.id) for each in found
                )
            )
            if len(found) < history.PAGE:
                return

    async def _read_missed(self, client: Client) -> Sequence[Any]:
        return await history.after(client, self._query, self._seen[client.shard])

    async def _send_latest(self, client: Client) -> None:
        """The latest events of a shard that this reader has not read before."""
        answers = await fanout.call_each([client], lambda each: history.latest(each, self._query))
        self._note_failures(answers)
        for shard, events in answers.results:
            newest = events[len(events) - self._query.limit :] if self._query.limit else []
            await self.write(
                "".join(message(None, self._shown(records.NUMBERED_EVENT.fill(each, shard=shard))) for each in newest)
            )
            self._seen[shard] = events[-1].id if events else 0

    def _note_failures(self, answers: "fanout.Answers[Sequence[object]]") -> None:
        for shard, error in answers.failures:
            self._problems[shard] = errors.explain(error)
            self._notices.append(message("shard", {"shard": shard, "message": errors.explain(error)}))


def _response() -> web.StreamResponse:
    return web.StreamResponse(headers={**access.HEADERS, "Content-Type": "text/event-stream"})


async def _write(response: web.StreamResponse, body: bytes) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(body)
