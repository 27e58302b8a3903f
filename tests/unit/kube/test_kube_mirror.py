"""A mirror loses nothing: not over broken watches, not over expired versions, not over objects that are created again."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from nstance.kube import errors, kinds
from nstance.kube.mirror import Mirror, Selection
from nstance.kube.port import Change, Kube, Listing, Object
from nstance.sim.loop import Machine
from nstance.sim.rng import SeededRng
from support.virtual_time import virtually


def thing(name: str, version: int, uid: str = "", **more: object) -> Object:
    return {
        "metadata": {"name": name, "namespace": "here", "uid": uid or f"uid-{name}", "resourceVersion": str(version)},
        **more,
    }


class End:
    """The watch ends without an error."""


Step = tuple[Change, Object] | Exception | End


class Server:
    """Answers each list and each watch with the next of its script; a watch whose script is over stays open."""

    def __init__(self, clock: Machine) -> None:
        self.clock = clock
        self.lists: list[Listing | Exception] = []
        self.watches: list[list[Step]] = []
        self.asked: list[tuple[str, str, float]] = []
        self.live: asyncio.Queue[Step] = asyncio.Queue()
        self.open = 0

    async def list(self, kind: kinds.Kind, **selectors: str) -> Listing:
        self.asked.append(("list", "", self.clock.loop.time()))
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(self, kind: kinds.Kind, *, version: str, **options: Any) -> AsyncIterator[tuple[Change, Object]]:
        self.asked.append(("watch", version, self.clock.loop.time()))
        script = self.watches.pop(0) if self.watches else []
        self.open += 1
        try:
            while True:
                step = script.pop(0) if script else await self.live.get()
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, End):
                    return
                yield step
        finally:
            self.open -= 1


class Scene:
    def __init__(self, clock: Machine) -> None:
        self.server = Server(clock)
        self.mirror = Mirror(cast(Kube, self.server), Selection(kinds.POD), clock=clock, rng=SeededRng(1))
        self.changes: list[tuple[str, str]] = []
        self.mirror.listen(self._hear)

    def _hear(self, old: Object | None, new: Object | None) -> None:
        """Notes ("+a", version), ("~a", version) or ("-a", version)."""
        about = new or old
        assert about is not None
        sign = "+" if old is None else "-" if new is None else "~"
        self.changes.append((sign + about["metadata"]["name"], about["metadata"]["resourceVersion"]))
        held = self.mirror.objects.get((about["metadata"]["namespace"], about["metadata"]["name"]))
        assert held is new, "the mirror shows what it tells"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.mirror.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert self.server.open == 0, "a stream was left open"


@virtually
async def test_list_then_changes(clock: Machine) -> None:
    scene = Scene(clock)
    scene.server.lists = [Listing([thing("a", 1), thing("b", 2)], "5")]
    scene.server.watches = [
        [
            (Change.MODIFIED, thing("a", 6)),
            (Change.ADDED, thing("c", 7)),
            (Change.DELETED, thing("b", 8)),
            (Change.DELETED, thing("never-seen", 9)),
        ]
    ]
    assert not scene.mirror.synced.is_set()
    assert scene.mirror.stale_reason
    async with scene.running():
        await scene.mirror.synced.wait()
        await clock.sleep(1)
        assert scene.changes == [("+a", "1"), ("+b", "2"), ("~a", "6"), ("+c", "7"), ("-b", "2")]
        assert set(scene.mirror.objects) == {("here", "a"), ("here", "c")}
        assert scene.mirror.stale_reason == ""


@virtually
async def test_a_broken_watch_is_resumed_from_the_last_version_seen(clock: Machine) -> None:
    """Bookmarks included, without a new list."""
    scene = Scene(clock)
    scene.server.lists = [Listing([], "5")]
    scene.server.watches = [
        [(Change.ADDED, thing("a", 6)), errors.UnavailableError("torn")],
        [(Change.BOOKMARK, {"metadata": {"resourceVersion": "90"}}), errors.UnavailableError("silent")],
        [End()],
    ]
    async with scene.running():
        await clock.sleep(5)
        assert [(what, version) for what, version, _ in scene.server.asked] == [
            ("list", ""), ("watch", "5"), ("watch", "6"), ("watch", "90"), ("watch", "90"),
        ]  # fmt: skip
        assert scene.changes == [("+a", "6")]


@virtually
async def test_after_an_expired_version_what_the_list_lacks_was_deleted(clock: Machine) -> None:
    scene = Scene(clock)
    scene.server.lists = [
        Listing([thing("kept", 1), thing("changed", 2), thing("gone", 3), thing("reborn", 4)], "5"),
        Listing([thing("kept", 1), thing("changed", 20), thing("reborn", 21, "other"), thing("new", 22)], "30"),
    ]
    scene.server.watches = [[errors.ExpiredError("too old")]]
    async with scene.running():
        await clock.sleep(1)
        assert scene.changes[4:] == [
            ("-gone", "3"),
            ("~changed", "20"),
            ("-reborn", "4"),
            ("+reborn", "21"),
            ("+new", "22"),
        ]
        assert [(what, version) for what, version, _ in scene.server.asked][-1] == ("watch", "30")
        assert scene.server.asked[-1][2] < 0.01, "the first re-list waits for nothing"


@virtually
async def test_an_object_that_is_created_again_is_a_deletion_and_an_addition(clock: Machine) -> None:
    """Also if the watch skipped its deletion."""
    scene = Scene(clock)
    scene.server.lists = [Listing([thing("a", 1)], "5")]
    scene.server.watches = [[(Change.MODIFIED, thing("a", 7, "another"))]]
    async with scene.running():
        await clock.sleep(1)
        assert scene.changes == [("+a", "1"), ("-a", "1"), ("+a", "7")]


@virtually
async def test_it_lists_again_after_a_silent_watch(clock: Machine) -> None:
    """The storage behind the API server was restored: nothing that happens there is newer than the version watched from."""
    scene = Scene(clock)
    scene.server.lists = [Listing([thing("a", 90), thing("b", 91)], "95"), Listing([thing("a", 40)], "50")]
    opened: Step = (Change.BOOKMARK, {"metadata": {"resourceVersion": "95"}})  # the client itself says so
    scene.server.watches = [[opened]]
    async with scene.running():
        await clock.sleep(100)
        assert set(scene.mirror.objects) == {("here", "a"), ("here", "b")}
        scene.server.live.put_nowait(End())
        await clock.sleep(1)
        assert set(scene.mirror.objects) == {("here", "a")}
        assert [version for what, version, _ in scene.server.asked if what == "watch"] == ["95", "50"]


@virtually
async def test_a_repeated_event_is_reported_once(clock: Machine) -> None:
    scene = Scene(clock)
    scene.server.lists = [Listing([thing("a", 1)], "1")]
    scene.server.watches = [[(Change.ADDED, thing("a", 1)), (Change.MODIFIED, thing("a", 1))]]
    async with scene.running():
        await clock.sleep(1)
        assert scene.changes == [("+a", "1")]


@virtually
async def test_errors_slow_it_down_and_are_named(clock: Machine) -> None:
    scene = Scene(clock)
    scene.server.lists = [errors.NotFoundError("no such kind")]
    async with scene.running():
        await clock.sleep(600)
        times = [at for _, _, at in scene.server.asked]
        assert 20 <= len(times) <= 60
        assert all(15.0 <= later - sooner <= 30.1 for sooner, later in itertools.pairwise(times[12:]))
        assert "no such kind" in scene.mirror.stale_reason
        assert not scene.mirror.synced.is_set()
        scene.server.lists = [Listing([thing("a", 1)], "5")]
        await clock.sleep(31)
        assert scene.mirror.synced.is_set()
        assert scene.mirror.stale_reason == ""


@virtually
async def test_a_busy_server_is_given_the_time_it_asks_for(clock: Machine) -> None:
    scene = Scene(clock)
    scene.server.lists = [errors.ThrottledError("later", delay=20.0), Listing([], "1")]
    async with scene.running():
        await clock.sleep(60)
        assert [at for what, _, at in scene.server.asked if what == "list"] == pytest.approx([0, 20], abs=0.01)


@pytest.mark.parametrize("last", [End(), errors.ExpiredError("always"), errors.UnavailableError("always")])
def test_a_server_that_ends_every_watch_is_not_asked_in_a_tight_loop(last: Step) -> None:
    @virtually
    async def scene(clock: Machine) -> None:
        scene = Scene(clock)
        scene.server.lists = [Listing([], "1")]
        scene.server.watches = [[last] for _ in range(1000)]
        async with scene.running():
            await clock.sleep(60)
            assert len(scene.server.asked) < 40

    scene()


@virtually
async def test_staleness_ends_with_the_first_event(clock: Machine) -> None:
    scene = Scene(clock)
    scene.server.lists = [Listing([], "5")]
    scene.server.watches = [[errors.UnavailableError("down")], [errors.UnavailableError("still down")]]
    async with scene.running():
        await clock.sleep(1)
        assert "still down" in scene.mirror.stale_reason, "open is not yet alive"
        scene.server.live.put_nowait((Change.BOOKMARK, {"metadata": {"resourceVersion": "6"}}))
        await clock.sleep(0.01)
        assert scene.mirror.stale_reason == ""


@virtually
async def test_a_watch_that_lasts_long_enough_is_not_stale_even_without_events(clock: Machine) -> None:
    scene = Scene(clock)
    scene.server.lists = [Listing([], "5")]
    scene.server.watches = [[errors.UnavailableError("down")]]
    async with scene.running():
        await clock.sleep(10)
        assert scene.mirror.stale_reason
        await clock.sleep(60)
        assert scene.mirror.stale_reason == ""


@virtually
async def test_one_bad_listener_harms_nobody(clock: Machine) -> None:
    scene = Scene(clock)
    last_seen: list[object] = []
    scene.mirror.listen(lambda old, new: 1 / 0)  # type: ignore[arg-type]
    scene.mirror.listen(lambda old, new: last_seen.append(new))
    scene.server.lists = [Listing([thing("a", 1)], "5")]
    async with scene.running():
        await clock.sleep(1)
        assert len(last_seen) == 1


@virtually
async def test_a_late_listener_hears_what_is_there(clock: Machine) -> None:
    scene = Scene(clock)
    scene.server.lists = [Listing([thing("a", 1)], "5")]
    async with scene.running():
        await clock.sleep(1)
        last_seen: list[tuple[object, object]] = []
        scene.mirror.listen(lambda old, new: last_seen.append((old, new)))
        assert last_seen == [(None, thing("a", 1))]


@virtually
async def test_objects_are_replaced_whole_and_lean(clock: Machine) -> None:
    scene = Scene(clock)
    first = thing("a", 1)
    first["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    scene.server.lists = [Listing([first], "5")]
    async with scene.running():
        await clock.sleep(1)
        held = scene.mirror.objects["here", "a"]
        assert held == thing("a", 1)
        assert "managedFields" in first["metadata"], "what others hold is not changed"
        scene.server.live.put_nowait((Change.MODIFIED, thing("a", 9)))
        await clock.sleep(1)
        assert held == thing("a", 1)
        assert scene.mirror.objects["here", "a"] == thing("a", 9)
        with pytest.raises(TypeError):
            scene.mirror.objects["here", "b"] = held  # type: ignore[index]
