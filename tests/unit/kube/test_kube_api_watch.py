"""Lists and watches: nothing is lost between them, and a watch that starts too late gets a 410."""

import pytest

from nstance.kube.api import selectors, status
from nstance.kube.port import Change
from unit.kube.kube_api_world import World

NODES = "nodes"


def seen(world: World, version: str, labels: str = "") -> list[tuple[str, str]]:
    watch = world.api.watch(world.served(NODES), version, selector=selectors.parse(labels=labels))
    return [(change.value, body["metadata"]["name"]) for change, body in watch.take()]


def test_a_watch_goes_on_where_the_list_ended() -> None:
    world = World()
    world.create(NODES, "a")
    page = world.api.list(world.served(NODES))
    world.patch(NODES, "a", {"spec": {"unschedulable": True}})
    world.create("configmaps", "other")
    world.create(NODES, "b")
    world.delete(NODES, "a")
    assert seen(world, page.version) == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]


def test_what_stops_matching_is_deleted_and_what_starts_is_added() -> None:
    world = World()
    world.create(NODES, "a", metadata={"labels": {"x": "1"}})
    world.create(NODES, "b")
    version = str(world.api.store.version)
    world.patch(NODES, "a", {"metadata": {"labels": {"x": "2"}}})
    world.patch(NODES, "b", {"metadata": {"labels": {"x": "1"}}})
    world.patch(NODES, "b", {"metadata": {"labels": {"y": "1"}}})
    world.delete(NODES, "a")
    assert seen(world, version, "x=1") == [("DELETED", "a"), ("ADDED", "b"), ("MODIFIED", "b")]


def test_the_deleted_object_carries_the_version_of_its_deletion() -> None:
    """A watch that resumes from it must not see the deletion again."""
    world = World()
    world.create(NODES, "a")
    watch = world.api.watch(world.served(NODES), str(world.api.store.version))
    world.delete(NODES, "a")
    [(change, body)] = watch.take()
    assert change is Change.DELETED
    assert seen(world, body["metadata"]["resourceVersion"]) == []


def test_the_memory_is_bounded_and_too_late_is_410() -> None:
    world = World(window=5)
    world.create(NODES, "a")
    version = str(world.api.store.version)
    watch = world.api.watch(world.served(NODES), version)
    for number in range(5):
        world.patch(NODES, "a", {"metadata": {"labels": {"n": str(number)}}})
    assert len(seen(world, version)) == 5
    world.patch(NODES, "a", {"metadata": {"labels": {"n": "last"}}})
    for late in (lambda: watch.take(), lambda: seen(world, version)):
        with pytest.raises(status.ApiError, match="too old resource version") as caught:
            late()
        assert (caught.value.code, caught.value.reason) == (410, "Expired")


@pytest.mark.parametrize(("version", "code"), [("999999", 410), ("abc", 400), ("-1", 400)])
def test_versions_of_another_world_are_refused(version: str, code: int) -> None:
    with pytest.raises(status.ApiError) as caught:
        seen(World(), version)
    assert caught.value.code == code


def test_pages_show_the_list_as_it_was_at_the_first() -> None:
    world = World(window=50)
    for name in "abcde":
        world.create(NODES, name)
    served = world.served(NODES)
    first = world.api.list(served, limit=2)
    assert (len(first.items), first.remaining) == (2, 3)
    world.delete(NODES, "d")
    world.create(NODES, "aa")
    world.patch(NODES, "c", {"metadata": {"labels": {"late": "yes"}}})
    names, page = [each["metadata"]["name"] for each in first.items], first
    while page.continue_token:
        page = world.api.list(served, limit=2, continue_token=page.continue_token)
        assert page.version == first.version
        assert not any(each["metadata"].get("labels") for each in page.items)
        names += [each["metadata"]["name"] for each in page.items]
    assert names == ["a", "b", "c", "d", "e"]
    for _ in range(60):
        world.delete(NODES, world.create(NODES, "x")["metadata"]["name"])
    with pytest.raises(status.ApiError) as caught:
        world.api.list(served, limit=2, continue_token=first.continue_token)
    assert caught.value.code == 410
    with pytest.raises(status.ApiError, match="continue key is not valid"):
        world.api.list(served, limit=2, continue_token="nonsense")
