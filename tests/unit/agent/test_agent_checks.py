"""Readiness checks in the agent: thresholds, start periods, limits. Time moves by hand."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from nstance.agent.checks import runner
from nstance.agent.checks.runner import Checks, Tally
from nstance.v1 import agent_pb2
from support.hand_clock import HandClock, rest


@pytest.mark.parametrize(
    ("failures", "successes", "runs", "results"),
    [
        (3, 1, "+", "+"),
        (3, 1, "--", "  "),
        (3, 1, "---", "  -"),
        (3, 1, "--+--+", "  ++++"),
        (3, 1, "+--+---", "++++++-"),
        (1, 1, "-+-", "-+-"),
        (1, 3, "++-+++", "  ---+"),
        (2, 2, "+-+-", "    "),
        (2, 2, "++-+--", "  ".replace(" ", "", 1) + "++++-"),
    ],
)
def test_a_result_changes_after_so_many_runs_in_a_row(failures: int, successes: int, runs: str, results: str) -> None:
    tally = Tally(failures=failures, successes=successes, counts_from=0.0)
    shown = ""
    for number, run in enumerate(runs):
        before = tally.passing
        new = tally.add("" if run == "+" else f"run {number} failed", now=1.0, wall=1000.0 + number)
        assert new == (tally.passing is not before)
        assert not new or tally.since == 1000.0 + number
        shown += {None: " ", True: "+", False: "-"}[tally.passing]
    assert shown == results


def test_the_newest_reason_of_a_failing_check_is_reported() -> None:
    tally = Tally(failures=1, successes=1, counts_from=0.0)
    assert tally.add("refused", now=1.0, wall=1.0)
    assert not tally.add("answered 500", now=2.0, wall=2.0)
    assert (tally.message, tally.since) == ("answered 500", 1.0)
    assert tally.add("", now=3.0, wall=3.0)
    assert tally.message == ""


def test_failures_in_the_start_period_do_not_count_but_a_success_does() -> None:
    tally = Tally(failures=2, successes=1, counts_from=10.0)
    for now in (1.0, 5.0, 9.0, 10.0):
        assert not tally.add("no", now=now, wall=now)
    assert tally.add("no", now=11.0, wall=11.0)
    assert tally.passing is False
    early = Tally(failures=1, successes=1, counts_from=10.0)
    assert early.add("", now=1.0, wall=1.0)
    assert early.add("no", now=2.0, wall=2.0)  # it was up: its start is over
    assert early.passing is False


def check(name: str, **fields: int) -> agent_pb2.Check:
    settings = {"interval_ms": 5000, "timeout_ms": 2000, "failures": 3, "successes": 1} | fields
    return agent_pb2.Check(name=name, tcp=agent_pb2.TcpCheck(port=80), **settings)


def config(hash: str, checks: Iterable[agent_pb2.Check]) -> agent_pb2.CheckConfig:
    return agent_pb2.CheckConfig(hash=hash, checks=checks)


class World:
    """Checks whose outcome a test chooses."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.problems: dict[str, str] = {}
        self.runs: list[str] = []
        self.changes = 0
        self.most_at_once = self._at_once = 0
        self.checks = Checks(self._probe, self.clock)
        self.checks.on_change = self._changed

    def _changed(self) -> None:
        self.changes += 1

    async def _probe(self, check: agent_pb2.Check) -> str:
        self.runs.append(check.name)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await self.clock.sleep(0.5)
        self._at_once -= 1
        return self.problems.get(check.name, "")

    def results(self) -> dict[str, bool]:
        return {result.name: result.passing for result in self.checks.results()}


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    serving = asyncio.create_task(made.checks.serve())
    await rest()
    try:
        yield made
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_check_runs_at_once_and_then_each_interval() -> None:
    async with world() as w:
        w.checks.configure(config("h", [check("a")]))
        assert (w.checks.hash, w.changes, w.results()) == ("h", 1, {})  # the server learns what runs
        await w.clock.advance(0.5)
        assert (w.results(), w.changes) == ({"a": True}, 2)
        await w.clock.advance(15.0)
        assert w.runs == ["a"] * 4
        assert w.changes == 2  # nothing new, nothing reported
        w.problems["a"] = "refused"
        await w.clock.advance(10.0)
        assert (w.results(), w.changes) == ({"a": True}, 2)
        await w.clock.advance(5.0)
        assert (w.results(), w.changes) == ({"a": False}, 3)


async def test_a_start_period_begins_with_the_check() -> None:
    async with world() as w:
        w.problems["a"] = "refused"
        w.checks.configure(config("h", [check("a", start_period_ms=20_000)]))
        await w.clock.advance(30.0)
        assert w.results() == {}  # two failures count so far
        await w.clock.advance(1.0)
        assert w.results() == {"a": False}


async def test_what_is_as_it_was_keeps_its_result() -> None:
    async with world() as w:
        w.checks.configure(config("1", [check("a"), check("b"), check("c")]))
        await w.clock.advance(1.0)
        assert w.results() == {"a": True, "b": True, "c": True}
        runs = len(w.runs)
        w.checks.configure(config("2", [check("a"), check("b", failures=1)]))
        assert w.results() == {"a": True}
        await rest()
        assert w.runs[runs:] == ["b"]
        await w.clock.advance(60.0)
        assert "c" not in w.runs[runs:]
        w.checks.configure(config("", []))
        assert (w.checks.hash, w.results()) == ("", {})
        done = len(w.runs)
        await w.clock.advance(60.0)
        assert len(w.runs) == done


async def test_few_run_at_a_time_and_no_more_than_the_limit() -> None:
    async with world() as w:
        w.checks.configure(config("h", [check(f"c{n}") for n in range(100)]))
        await w.clock.advance(60.0)
        assert w.most_at_once == runner.AT_ONCE
        assert len(w.results()) == runner.MAX_CHECKS


async def test_nothing_runs_after_the_end() -> None:
    async with world() as w:
        w.checks.configure(config("h", [check("a", interval_ms=0, failures=0, successes=0)]))
        await w.clock.advance(2.0)  # senseless numbers neither spin nor crash
        assert 2 <= len(w.runs) <= 5
    done = len(w.runs)
    await w.clock.advance(60.0)
    assert len(w.runs) == done
