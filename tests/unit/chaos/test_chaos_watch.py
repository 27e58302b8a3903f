"""The watch of a chaos run reports a deposed server that still acts, and no other."""

import random
from pathlib import Path

import pytest
from chaos.children import Child, Life
from chaos.watch import GRACE_SECONDS, Sample, Server, Watch
from chaos.world import World


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    world = World(tmp_path, 1, random.Random(1))
    for name in ("a", "b"):
        child = world.servers[name] = Child(name, (), tmp_path, {})
        child.lives.append(Life(f"{name}.1", None, tmp_path / name, 0.0))  # type: ignore[arg-type]
    return Watch(world)


def sample(at: float, epoch: int, **servers: tuple[int, int]) -> Sample:
    """`servers`: epoch and changes of each."""
    servers_by_name = {
        name: Server(leads=own == epoch, epoch=own, connected=0, changes=changes, running=0, kilobytes=0)
        for name, (own, changes) in servers.items()
    }
    return Sample(at, epoch, "", servers_by_name, frozenset())


def show(watch: Watch, *samples: Sample) -> list[str]:
    for before, now in zip(samples, samples[1:], strict=False):  # noqa: RUF007
        watch._check_single_actor(before, now)
    return watch.problems


def test_a_deposed_server_that_acts_is_seen(watch: Watch) -> None:
    late = 11 + GRACE_SECONDS + 1
    problems = show(
        watch,
        sample(10, 1, a=(1, 5)),
        sample(11, 2, a=(1, 5)),
        sample(late, 2, a=(1, 5)),
        sample(late + 1, 2, a=(1, 6)),
    )
    assert [problem.partition(":")[0] for problem in problems] == ["I5"]


def test_calls_in_flight_may_end(watch: Watch) -> None:
    assert not show(
        watch, sample(10, 1, a=(1, 5)), sample(11, 2, a=(1, 6)), sample(12, 2, a=(1, 7)), sample(30, 2, a=(1, 7))
    )


def test_a_stopped_server_gets_its_moment_when_it_wakes(watch: Watch) -> None:
    watch.world.servers["a"].life.stops.append((10.5, 29.5))
    assert not show(
        watch, sample(10, 1, a=(1, 5)), sample(11, 2, a=(1, 5)), sample(30, 2, a=(1, 5)), sample(31, 2, a=(1, 6))
    )


def test_the_leader_may_act(watch: Watch) -> None:
    assert not show(
        watch, sample(10, 2, a=(2, 5), b=(1, 1)), sample(30, 2, a=(2, 9), b=(1, 1)), sample(40, 2, a=(2, 12), b=(1, 1))
    )


def test_a_busy_leader_is_not_missed() -> None:
    busy = Sample(1.0, 1, "a", {}, frozenset({"a"}))
    gone = Sample(1.0, 1, "a", {}, frozenset({"b"}))
    assert not busy.leaderless
    assert gone.leaderless
