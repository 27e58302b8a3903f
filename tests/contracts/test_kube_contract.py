"""One suite for every Kubernetes API server: memory, dev-k8s over HTTP, and a real one where there is one. Here: what is
read; `test_kube_contract_writes.py`: what is changed."""

import asyncio
import os
import random
import time
from contextlib import aclosing, suppress

import pytest

from contracts import kube_worlds as worlds
from contracts.kube_worlds import DEADLINE, WIDGET, World, changes, names, summarize
from nstance.clock import SystemClock, SystemRng
from nstance.kube import errors, kinds
from nstance.kube.mirror import Mirror
from nstance.kube.port import Change, Object, Selection
from support.eventually import eventually

CONFIG_MAP, POD = kinds.CONFIG_MAP, kinds.POD
NOWHERE = kinds.Kind("contract.nstance.dev", "v1", "Nothing", "nothings")
world = worlds.world


@pytest.mark.skipif(worlds.REAL not in os.environ, reason=f"no real API server: {worlds.REAL} names no kubeconfig")
def test_a_real_api_server_is_judged_too() -> None:
    """Says once, instead of for each test, that there was none."""


# ---- get


async def test_get_gives_what_was_created(world: World) -> None:
    made = await world.kube.create(CONFIG_MAP, world.config_map("a", key="value"))
    found = await world.kube.get(CONFIG_MAP, "a", namespace=world.namespace)
    assert found == made
    assert (found["apiVersion"], found["kind"], found["data"]) == ("v1", "ConfigMap", {"key": "value"})
    node = await world.kube.get(kinds.NAMESPACE, world.namespace)
    assert node["kind"] == "Namespace"


async def test_get_of_what_is_not_there(world: World) -> None:
    with pytest.raises(errors.NotFoundError):
        await world.kube.get(CONFIG_MAP, "missing", namespace=world.namespace)
    with pytest.raises(errors.NotFoundError):
        await world.kube.get(CONFIG_MAP, "missing", namespace="no-such-namespace")
    with pytest.raises(errors.NotFoundError):
        await world.kube.get(NOWHERE, "a", namespace=world.namespace)


async def test_what_is_handed_out_is_the_callers(world: World) -> None:
    body = world.config_map("a", key="value")
    before = {**body, "metadata": dict(body["metadata"])}
    made = await world.kube.create(CONFIG_MAP, body)
    assert body == before
    made["data"]["key"] = "changed"
    listing = await world.kube.list(CONFIG_MAP, namespace=world.namespace, fields="metadata.name=a")
    listing.items[0]["data"]["key"] = "changed"
    assert (await world.kube.get(CONFIG_MAP, "a", namespace=world.namespace))["data"] == {"key": "value"}


# ---- list


async def test_list_gives_all_of_them_however_many_pages(world: World) -> None:
    wanted = [f"c{number:02}" for number in range(3 * worlds.PAGE + 1)]
    for name in wanted:
        await world.kube.create(CONFIG_MAP, world.config_map(name, {"mine": "yes"}))
    listing = await world.kube.list(CONFIG_MAP, namespace=world.namespace, labels="mine=yes")
    assert names(listing.items) == wanted
    assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {("v1", "ConfigMap")}
    assert listing.version


async def test_list_without_a_namespace_means_all(world: World) -> None:
    await world.kube.create(CONFIG_MAP, world.config_map("here", {"mine": world.namespace}))
    elsewhere = world.config_map("there", {"mine": world.namespace})
    await world.kube.create(CONFIG_MAP, {**elsewhere, "metadata": {**elsewhere["metadata"], "namespace": "default"}})
    try:
        listing = await world.kube.list(CONFIG_MAP, labels=f"mine={world.namespace}")
        assert names(listing.items) == ["here", "there"]
        listing = await world.kube.list(CONFIG_MAP, namespace=world.namespace, labels=f"mine={world.namespace}")
        assert names(listing.items) == ["here"]
    finally:
        await world.kube.delete(CONFIG_MAP, "there", namespace="default")


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ("color=red", ["a"]),
        ("color==red", ["a"]),
        ("color!=red,mine", ["b", "c"]),
        ("color in (red, green)", ["a", "b"]),
        ("mine,color notin (red)", ["b", "c"]),
        ("color", ["a", "b"]),
        ("mine,!color", ["c"]),
        ("color=red,size=big", ["a"]),
        ("color=red,size=small", []),
    ],
)
async def test_label_selectors(world: World, labels: str, wanted: list[str]) -> None:
    for name, some in {"a": {"color": "red", "size": "big"}, "b": {"color": "green"}, "c": {}}.items():
        await world.kube.create(CONFIG_MAP, world.config_map(name, {"mine": "yes", **some}))
    listing = await world.kube.list(CONFIG_MAP, namespace=world.namespace, labels=labels)
    assert names(listing.items) == wanted


async def test_field_selectors(world: World) -> None:
    for name, node in (("a", "n1"), ("b", "n2")):
        body = world.pod(name)
        body["spec"]["nodeName"] = node
        await world.kube.create(POD, body)

    async def found(fields: str) -> list[str]:
        return names((await world.kube.list(POD, namespace=world.namespace, fields=fields)).items)

    assert await found("spec.nodeName=n1") == ["a"]
    assert await found("metadata.name!=a") == ["b"]
    assert await found(f"metadata.namespace={world.namespace},spec.nodeName=n2") == ["b"]
    assert await found("status.phase=Running") == []


async def test_selectors_that_mean_nothing(world: World) -> None:
    with pytest.raises(errors.InvalidError):
        await world.kube.list(POD, namespace=world.namespace, labels="a in (")
    with pytest.raises(errors.InvalidError):
        await world.kube.list(POD, namespace=world.namespace, fields="spec.whatever=x")


async def test_list_of_nothing(world: World) -> None:
    listing = await world.kube.list(WIDGET, namespace=world.namespace)
    assert listing.items == []
    assert listing.version
    with pytest.raises(errors.NotFoundError):
        await world.kube.list(NOWHERE)


async def test_nothing_is_lost_between_a_list_and_a_watch_from_its_version(world: World) -> None:
    """Each object is in the list or in the watch, never in both or neither, while somebody writes."""

    async def write() -> None:
        for number in range(20):
            await world.kube.create(WIDGET, world.widget(f"w{number:02}"))

    writing = asyncio.ensure_future(write())
    async with asyncio.timeout(DEADLINE):
        listing = await world.kube.list(WIDGET, namespace=world.namespace)
        while not listing.items:
            await asyncio.sleep(0)
            listing = await world.kube.list(WIDGET, namespace=world.namespace)
    watch = world.kube.watch(Selection(WIDGET, world.namespace), version=listing.version)
    async with aclosing(watch):  # type: ignore[type-var]
        rest = await changes(watch, 20 - len(listing.items))
    await writing
    assert sorted(names(listing.items) + names([body for _, body in rest])) == [f"w{number:02}" for number in range(20)]


# ---- watch


async def test_watch_tells_what_changed_after_a_version_in_order(world: World) -> None:
    await world.kube.create(WIDGET, world.widget("before"))
    version = (await world.kube.list(WIDGET, namespace=world.namespace)).version
    made = await world.kube.create(WIDGET, world.widget("a", size=1))
    changed = await world.kube.patch(WIDGET, "a", {"spec": {"size": 2}}, namespace=world.namespace)
    watch = world.kube.watch(Selection(WIDGET, world.namespace), version=version)
    async with aclosing(watch):  # type: ignore[type-var]
        first = await changes(watch, 2)
        await world.kube.delete(WIDGET, "a", namespace=world.namespace)
        [(change, gone)] = await changes(watch, 1)
    assert first == [(Change.ADDED, made), (Change.MODIFIED, changed)]
    assert (change, gone["metadata"]["uid"], gone["spec"]) == (Change.DELETED, made["metadata"]["uid"], {"size": 2})
    assert gone["metadata"]["resourceVersion"] not in (version, changed["metadata"]["resourceVersion"])


async def test_watch_resumes_from_any_version_it_sent(world: World) -> None:
    """Neither repeating nor skipping: also from a deletion's, and from a bookmark's."""
    version = (await world.kube.list(WIDGET, namespace=world.namespace)).version
    for name in "abc":
        await world.kube.create(WIDGET, world.widget(name))
    await world.kube.delete(WIDGET, "a", namespace=world.namespace)
    await world.kube.create(WIDGET, world.widget("d"))
    whole = [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c"), ("DELETED", "a"), ("ADDED", "d")]
    watch = world.kube.watch(Selection(WIDGET, world.namespace), version=version)
    async with aclosing(watch):  # type: ignore[type-var]
        found = await changes(watch, len(whole))
    assert summarize(found) == whole
    for at, (_, body) in enumerate(found[:-1], start=1):
        again = world.kube.watch(Selection(WIDGET, world.namespace), version=body["metadata"]["resourceVersion"])
        async with aclosing(again):  # type: ignore[type-var]
            assert summarize(await changes(again, len(whole) - at)) == whole[at:]


async def test_watch_ends_by_itself_and_its_last_version_is_good_to_go_on(world: World) -> None:
    version = (await world.kube.list(WIDGET, namespace=world.namespace)).version
    await world.kube.create(WIDGET, world.widget("a"))
    found: list[str] = []
    async with asyncio.timeout(DEADLINE):
        async for change, body in world.kube.watch(Selection(WIDGET, world.namespace), version=version, timeout=1.0):
            version = body["metadata"]["resourceVersion"]
            if change is not Change.BOOKMARK:
                found.append(body["metadata"]["name"])
    assert found == ["a"]
    await world.kube.create(WIDGET, world.widget("b"))
    watch = world.kube.watch(Selection(WIDGET, world.namespace), version=version)
    async with aclosing(watch):  # type: ignore[type-var]
        assert summarize(await changes(watch, 1)) == [("ADDED", "b")]


async def test_bookmarks_hold_a_version_to_go_on_from(world: World) -> None:
    version = (await world.kube.list(WIDGET, namespace=world.namespace)).version
    await world.kube.create(CONFIG_MAP, world.config_map("unrelated"))
    marks: list[Object] = []
    async with asyncio.timeout(DEADLINE):
        async for change, body in world.kube.watch(Selection(WIDGET, world.namespace), version=version, timeout=3.0):
            assert change is Change.BOOKMARK
            marks.append(body)
    assert marks, "a quiet watch says how far it is before it ends"
    assert (marks[-1]["apiVersion"], marks[-1]["kind"]) == (WIDGET.api_version, "Widget")
    version = marks[-1]["metadata"]["resourceVersion"]
    watch = world.kube.watch(Selection(WIDGET, world.namespace), version=version)
    async with aclosing(watch):  # type: ignore[type-var]
        await world.kube.create(WIDGET, world.widget("a"))
        assert summarize(await changes(watch, 1)) == [("ADDED", "a")]


async def test_watch_of_what_stops_and_starts_matching(world: World) -> None:
    version = (await world.kube.list(CONFIG_MAP, namespace=world.namespace)).version
    watch = world.kube.watch(Selection(CONFIG_MAP, world.namespace, labels="color=red"), version=version)
    async with aclosing(watch):  # type: ignore[type-var]
        await world.kube.create(CONFIG_MAP, world.config_map("a", {"color": "green"}))
        for color in ("red", "red", "green", "red"):
            body = {"metadata": {"labels": {"color": color}}, "data": {"now": str(time.monotonic())}}
            await world.kube.patch(CONFIG_MAP, "a", body, namespace=world.namespace)
        await world.kube.delete(CONFIG_MAP, "a", namespace=world.namespace)
        found = await changes(watch, 5)
    assert [change.value for change, _ in found] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]


async def test_watch_of_one_namespace_and_one_name(world: World) -> None:
    version = (await world.kube.list(CONFIG_MAP)).version
    here = world.kube.watch(Selection(CONFIG_MAP, world.namespace, fields="metadata.name=a"), version=version)
    everywhere = world.kube.watch(Selection(CONFIG_MAP, labels=f"mine={world.namespace}"), version=version)
    elsewhere = world.config_map("a", {"mine": world.namespace})
    elsewhere["metadata"]["namespace"] = "default"
    await world.kube.create(CONFIG_MAP, elsewhere)
    await world.kube.create(CONFIG_MAP, world.config_map("b", {"mine": world.namespace}))
    await world.kube.create(CONFIG_MAP, world.config_map("a", {"mine": world.namespace}))
    await world.kube.delete(CONFIG_MAP, "a", namespace="default")
    async with aclosing(here), aclosing(everywhere):  # type: ignore[type-var]
        [(change, body)] = await changes(here, 1)
        assert (change, body["metadata"]["namespace"]) == (Change.ADDED, world.namespace)
        found = await changes(everywhere, 4)
        assert [body["metadata"]["namespace"] == "default" for _, body in found] == [True, False, False, True]


async def test_watch_from_a_version_that_is_too_old(world: World) -> None:
    version = await world.ancient()
    with pytest.raises(errors.ExpiredError):
        await changes(world.kube.watch(Selection(WIDGET), version=version), 1)


async def test_watch_of_a_kind_that_is_not_there(world: World) -> None:
    with pytest.raises(errors.NotFoundError):
        await changes(world.kube.watch(Selection(NOWHERE), version="1"), 1)


async def test_watch_whose_stream_breaks(world: World) -> None:
    version = (await world.kube.list(WIDGET, namespace=world.namespace)).version
    watch = world.kube.watch(Selection(WIDGET, world.namespace), version=version)
    await world.kube.create(WIDGET, world.widget("a"))
    assert summarize(await changes(watch, 1)) == [("ADDED", "a")]
    world.break_streams()
    with pytest.raises(errors.UnavailableError):
        await changes(watch, 1)


async def test_a_closed_watch_says_nothing_more(world: World) -> None:
    version = (await world.kube.list(WIDGET, namespace=world.namespace)).version
    watch = world.kube.watch(Selection(WIDGET, world.namespace), version=version)
    await world.kube.create(WIDGET, world.widget("a"))
    await changes(watch, 1)
    await watch.aclose()  # type: ignore[attr-defined]
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_mirror_shows_the_truth_whatever_breaks(world: World) -> None:
    """Random writes, broken streams: in the end it holds what a list holds, and reported every step from one to the other."""
    rng = random.Random(7)
    mirror = Mirror(world.kube, Selection(WIDGET, world.namespace), clock=SystemClock(), rng=SystemRng())
    shadow: dict[str, str] = {}

    def on_change(old: Object | None, new: Object | None) -> None:
        about = old or new
        assert about is not None
        name = about["metadata"]["name"]
        assert shadow.get(name) == (old["metadata"]["resourceVersion"] if old else None)
        if new is None:
            del shadow[name]
        else:
            shadow[name] = new["metadata"]["resourceVersion"]

    mirror.listen(on_change)
    running = asyncio.ensure_future(mirror.run())
    try:
        for number in range(60):
            name = f"w{rng.randrange(6)}"
            with suppress(errors.NotFoundError, errors.AlreadyExistsError):
                match rng.randrange(3):
                    case 0:
                        await world.kube.create(WIDGET, world.widget(name))
                    case 1:
                        await world.kube.patch(WIDGET, name, {"spec": {"size": number}}, namespace=world.namespace)
                    case 2:
                        await world.kube.delete(WIDGET, name, namespace=world.namespace)
            if number % 15 == 7:
                world.break_streams()
                await asyncio.sleep(0.05)  # for connections that are kept to be found dead
        truth = {
            item["metadata"]["name"]: item["metadata"]["resourceVersion"]
            for item in (await world.kube.list(WIDGET, namespace=world.namespace)).items
        }

        async def same() -> bool:
            return shadow == truth and mirror.synced.is_set()

        await eventually(same)
        assert {name: body["metadata"]["resourceVersion"] for (_, name), body in mirror.objects.items()} == truth
        assert truth
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
