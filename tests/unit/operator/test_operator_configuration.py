"""config.yaml: what is taken, everything that is refused with its line, and changes while it is followed."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.clock import SystemClock
from nstance.operator import config_file
from nstance.operator.config_file import Configuration, ConfigWatcher, Endpoints, InvalidConfigError, parse
from nstance.operator.errors import FatalError

GOOD = """\
cluster_id: example-cluster
tenant: default
shards:
  us-west-2a:
    registration_addr: "10.0.0.1:8992"
    operator_addr: "10.0.0.1:8993"
  us-east-1a:
    registration_addr: "10.0.1.1:8992, host.example:8992"
    operator_addr: "10.0.1.1:8993,[fd00::1]:8993"
"""


def test_the_documents_example() -> None:
    found = parse(GOOD.encode(), source="x")
    assert (found.cluster, found.tenant) == ("example-cluster", "default")
    assert dict(found.shards) == {
        "us-west-2a": Endpoints(registration=("10.0.0.1:8992",), operator=("10.0.0.1:8993",)),
        "us-east-1a": Endpoints(
            registration=("10.0.1.1:8992", "host.example:8992"), operator=("10.0.1.1:8993", "[fd00::1]:8993")
        ),
    }
    assert list(found.shards) == ["us-west-2a", "us-east-1a"]


def test_the_tenant_has_a_default() -> None:
    assert parse(GOOD.replace("tenant: default\n", "").encode(), source="x").tenant == "default"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["the file is empty"]),
        ("- a", ["line 1: the file: expected a map", "cluster_id is missing", "shards is missing"]),
        ("cluster_id: [", ["line 1: not YAML"]),
        ("cluster_id: a\nshards: {}", ["line 2: shards is empty"]),
        ("cluster_id: a\nshards:", ["line 2: shards is empty"]),
        ("cluster_id: a\nshards: []", ["line 2: shards: expected a map"]),
        ("cluster_id: a\nshards: {b: }", ["line 2: shards.b: expected a map"]),
        ("cluster_id: a", ["shards is missing"]),
        ("shards: {b: {registration_addr: h:1, operator_addr: h:1}}", ["cluster_id is missing"]),
        (GOOD.replace("tenant", "tennant"), ["line 2: the file: unknown key 'tennant'"]),
        (GOOD + "more: 1\n", ["line 10: the file: unknown key 'more'"]),
        (GOOD + "tenant: x\n", ["line 10: the file: tenant appears twice"]),
        (GOOD.replace("us-east-1a", "us-west-2a"), ["line 7: shards: us-west-2a appears twice"]),
        (GOOD.replace("us-east-1a", "Us--East"), ["shards.Us--East: expected a shard ID"]),
        (GOOD.replace('operator_addr: "10.0.0.1', 'operator: "10.0.0.1'), ["line 6", "operator_addr is missing"]),
        (GOOD.replace("10.0.0.1:8993", "10.0.0.1"), ["line 6: shards.us-west-2a.operator_addr: expected host:port"]),
        (GOOD.replace("10.0.0.1:8993", "10.0.0.1:0"), ["expected host:port"]),
        (GOOD.replace("10.0.0.1:8993", "http://a:1"), ["expected host:port"]),
        (GOOD.replace("10.0.0.1:8993", "a b:1"), ["expected a host name"]),
        (GOOD.replace("10.0.0.1:8993", "a:1,,b:1"), ["expected host:port"]),
        (GOOD.replace('"10.0.0.1:8993"', "[1]"), ["expected host:port, several separated by commas"]),
        (GOOD.replace("example-cluster", "Bad_Name"), ["line 1: cluster_id: expected lower-case"]),
        (GOOD.replace("default", "{}"), ["line 2: tenant: expected lower-case"]),
        (
            GOOD.replace("example-cluster", "c" * 32).replace("tenant: default", "tenant: " + "t" * 30),
            ["at most 61 characters together, found 62"],
        ),
        (GOOD.replace("example-cluster", "A").replace("10.0.0.1:8993", "x"), ["line 1:", "line 6:"]),
        ("[" * 5000, ["not YAML"]),
        ("a: &a [*a]\nb: *a", ["unknown key 'a'", "unknown key 'b'"]),
    ],
)
def test_every_problem_is_reported_with_its_line(text: str, problems: list[str]) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse(text.encode(), source="config.yaml")
    for problem in problems:
        assert problem in str(refused.value)
    assert str(refused.value).startswith("config.yaml: ")
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_taken_or_refused_but_never_break_it(content: bytes) -> None:
    """B: input surface."""
    with contextlib.suppress(InvalidConfigError):
        assert parse(content, source="x").shards


def test_a_missing_file_is_one_fatal_line(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match=r"nothing\.yaml is missing; mount it there or set --config"):
        config_file.load(tmp_path / "nothing.yaml")
    with pytest.raises(FatalError, match="cannot be read"):
        config_file.load(tmp_path)
    (tmp_path / "bad").write_text("x: 1")
    with pytest.raises(FatalError, match=r"invalid: .*unknown key 'x'"):
        config_file.load(tmp_path / "bad")


class Steps(SystemClock):
    """Sleeps as long as the test wants it to."""

    def __init__(self) -> None:
        super().__init__()
        self._asleep, self._wake = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self._asleep.set()
        await self._wake.wait()
        self._wake.clear()

    async def step(self) -> None:
        """One look at the file, to its end."""
        async with asyncio.timeout(10):
            await self._asleep.wait()
            self._asleep.clear()
            self._wake.set()
            await self._asleep.wait()


async def test_changes_are_followed_and_bad_ones_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a ConfigMap is mounted: a link to a folder that is swapped."""
    for name, text in (
        ("..1", GOOD),
        ("..2", GOOD.replace("us-east-1a", "us-east-1b")),
        ("..3", GOOD + "what: 1\n"),
        ("..4", GOOD.replace("default", "other")),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)

    def swap(name: str) -> None:
        (tmp_path / "new").symlink_to(name)
        os.replace(tmp_path / "new", tmp_path / "..data")

    swap("..1")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    clock, seen = Steps(), list[Configuration]()
    following = ConfigWatcher(tmp_path / "config.yaml", clock=clock, poll_seconds=1.0)
    task = asyncio.create_task(following.run(seen.append))
    try:
        await clock.step()
        assert not seen
        swap("..2")
        await clock.step()
        assert [list(each.shards) for each in seen] == [["us-west-2a", "us-east-1b"]]
        assert following.current is seen[0]
        for bad, reason in (("..3", "unknown key 'what'"), ("..4", "restart it"), ("..9", "No such file")):
            caplog.clear()
            swap(bad)
            await clock.step()
            await clock.step()
            assert [reason in str(record.__dict__["reason"]) for record in caplog.records] == [True]  # told once
            assert following.current is seen[0]
        swap("..1")
        await clock.step()
        assert list(seen[1].shards) == ["us-west-2a", "us-east-1a"]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
