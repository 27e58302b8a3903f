"""How readiness follows from an agent's report."""

import pytest

from nstance.core import readiness
from nstance.model.ids import InstanceId

ID = InstanceId("web-01jw51srryegh9snf9cmeh3k4q")


@pytest.mark.parametrize(
    ("wanted", "installed", "results", "blocked", "problem", "why"),
    [
        ("1", "1", {"a": True, "b": True}, "", "", ""),
        ("1", "1", {"a": True, "b": True, "mine": False}, "", "", ""),
        ("1", "1", {"a": True, "b": True}, "", "a note", ""),
        ("1", "", {"a": True, "b": True}, "", "", "its files are not installed yet"),
        ("", "", {"a": True, "b": True}, "", "", "its files are not installed yet"),
        ("2", "1", {"a": True, "b": True}, "", "exit code 1", "its files are not installed yet; exit code 1"),
        ("2", "1", {"a": True, "b": True}, "no secret", "", "its files cannot be rendered: no secret"),
        ("1", "1", {"a": False, "b": True}, "", "", "failing checks: a"),
        ("1", "1", {"a": False, "b": False}, "", "", "failing checks: a, b"),
        ("1", "1", {"b": True}, "", "", "checks without a result yet: a"),
        ("1", "1", {}, "", "too old", "checks without a result yet: a, b; too old"),
        (
            "2",
            "1",
            {"a": False},
            "",
            "",
            "its files are not installed yet; failing checks: a; checks without a result yet: b",
        ),
    ],
)
def test_an_instance_is_ready_when_nothing_is_missing(
    wanted: str, installed: str, results: dict[str, bool], blocked: str, problem: str, why: str
) -> None:
    found = readiness.assess(
        ID,
        readiness.FileStatus(desired_hash=wanted, installed_hash=installed, blocked=blocked, problem=problem),
        checks=("b", "a"),
        results=results,
    )
    assert readiness.explain(found) == why
    assert found.ready == (not why)


@pytest.mark.parametrize(
    ("installed", "results", "blocked", "serving"),
    [
        ("1", {"a": True}, "no secret", True),
        ("1", {"a": True}, "", False),
        ("1", {"a": False}, "no secret", False),
        ("1", {}, "no secret", False),
        ("", {"a": True}, "no secret", False),  # its on-receive command failed
    ],
)
def test_a_blocked_instance_serves_with_the_files_that_it_has(
    installed: str, results: dict[str, bool], blocked: str, serving: bool
) -> None:
    files = readiness.FileStatus(desired_hash="2", installed_hash=installed, blocked=blocked)
    assert readiness.assess(ID, files, checks=("a",), results=results).serving is serving
