"""Runs `top`: the feeds of all shards, the keys of a person, and a drawing when one of them changed something.

The feeds are those of the dashboard, so no event is lost or doubled when the leader changes.
"""

import asyncio
import contextlib
import io
import signal
import sys
from collections.abc import AsyncIterator, Sequence

from grpclib.const import Status

from nstance.admin import errors
from nstance.admin.client import Client, ShardError
from nstance.admin.shard import alarms, fanout, life
from nstance.admin.shard.records import Record
from nstance.admin.shard.shard_feed import ShardFeed
from nstance.admin.shard_flags import ShardSelection
from nstance.admin.top import pages, screen
from nstance.admin.top.model import Detail, Fleet
from nstance.admin.top.pages import Surface
from nstance.admin.top.screen import Screen
from nstance.admin.top.state import Page, Shown, State, press
from nstance.clock import Clock, Rng, SystemClock, SystemRng
from nstance.model.ids import ShardId
from nstance.tasks import background

FRAME_SECONDS = 0.2  # between two drawings because of changes; keys do not wait for it
IDLE_SECONDS = 1.0  # ages and the clock go on
DETAIL_SECONDS = 2.0


async def run(selection: ShardSelection) -> None:
    """Until the person quits. What the client says meanwhile is printed at the end: it would be lost on the screen."""
    messages = io.StringIO()
    try:
        async with fanout.open_clients(selection) as clients:
            with screen.opened() as opened, contextlib.redirect_stderr(messages):
                await Top(clients, opened, SystemClock(), SystemRng()).run()
    finally:
        sys.stderr.write(messages.getvalue())


class Top:
    def __init__(self, clients: Sequence[Client], opened: Screen, clock: Clock, rng: Rng) -> None:
        self._clients = {client.shard: client for client in clients}
        self._feeds = [ShardFeed(client, self._on_change, clock, rng) for client in clients]
        self._screen = opened
        self._clock = clock
        self._state = State()
        self._shown = Shown()
        self._detail = Detail()
        self._has_changed = True
        self._fleet = Fleet()
        self._key_was_pressed = asyncio.Event()
        self._detail_is_due = asyncio.Event()

    async def run(self) -> None:
        work = [each for feed in self._feeds for each in feed.work()]
        async with self._listening(), background.running([*work, self._read_detail()]) as tasks:
            while not self._state.is_done:
                for task in tasks:
                    if task.done():
                        task.result()  # a bug: nothing else ends them
                self._draw()
                await self._wait()

    # ---- waking up

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._on_keys)
        loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._quit)
        try:
            yield
        finally:
            loop.remove_reader(sys.stdin.fileno())
            for number in (signal.SIGWINCH, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    async def _wait(self) -> None:
        """Until a key is pressed, or something has changed and the last drawing is old enough."""
        for _ in range(round(IDLE_SECONDS / FRAME_SECONDS)):
            if await background.is_set_within(self._key_was_pressed, FRAME_SECONDS) or self._has_changed:
                break
        self._key_was_pressed.clear()

    def _on_keys(self) -> None:
        for key in self._screen.pressed():
            before = self._state.place
            self._state = press(self._state, key, self._shown)
            if self._state.place.subject != before.subject:
                self._detail_is_due.set()
            if self._state.is_typing or self._state.place != before:
                self._draw()  # the next key refers to what is shown
        self._key_was_pressed.set()

    def _on_resize(self) -> None:
        self._screen.resize()
        self._key_was_pressed.set()

    def _quit(self) -> None:
        self._state = State(is_done=True)
        self._key_was_pressed.set()

    def _on_change(self, shard: ShardId, kind: str, key: str, record: Record | None) -> None:
        self._has_changed = True

    # ---- drawing

    def _draw(self) -> None:
        width, height = self._screen.size
        surface = Surface(width, height, is_unicode=self._screen.is_unicode)
        drawing = pages.draw(self._look(), self._state, surface)
        self._shown = drawing.shown
        self._screen.show(drawing.lines)

    def _look(self) -> Fleet:
        now = self._clock.wall()
        if self._has_changed or int(now) != int(self._fleet.now):
            self._has_changed = False
            shards = [feed.record() for feed in self._feeds]
            groups = [group for feed in self._feeds for group in feed.groups.values()]
            events = [record for feed in self._feeds for _, record in feed.events]
            if len(self._feeds) > 1:
                events.sort(key=lambda record: str(record["time"]))
            self._fleet = Fleet(
                shards=shards,
                groups=groups,
                instances=[row for feed in self._feeds for row in feed.instances.values()],
                events=events,
                alarms=alarms.find(shards, groups, events, now=now),
                detail=self._detail,
                now=now,
            )
        return self._fleet

    # ---- the opened instance

    async def _read_detail(self) -> None:
        while True:
            self._detail_is_due.clear()
            place = self._state.place
            if place.page is Page.INSTANCE:
                shard, id = place.subject
                self._detail = await self._load_detail(ShardId(shard), id)
                self._has_changed = True
            await background.is_set_within(self._detail_is_due, DETAIL_SECONDS)

    async def _load_detail(self, shard: ShardId, id: str) -> Detail:
        try:
            return Detail(life.record(shard, await life.load(self._clients[shard], id)))
        except errors.CommandError as error:
            kept = self._detail.record
            last = kept if kept is not None and kept["instance_id"] == id else None
            is_gone = isinstance(error, ShardError) and error.code is Status.NOT_FOUND
            return Detail(
                last, "it is gone: this is what was known last" if is_gone and last else errors.explain(error)
            )
