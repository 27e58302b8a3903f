"""By which limits the doctor judges what it measured."""

import pytest

from nstance.admin.doctor.findings import Finding, Level, judge_clock, judge_expiry, judge_latency, judge_version

DAY = 86400.0


@pytest.mark.parametrize(
    ("ahead", "uncertainty", "level", "says"),
    [
        (0.4, 0.5, Level.OK, "agrees with this machine's to ±0.5 s"),
        (2.4, 0.5, Level.OK, "agrees"),  # it may be 1.9 s
        (-2.6, 0.5, Level.WARNING, "2.6 s behind"),
        (29.0, 0.1, Level.WARNING, "29.0 s ahead of"),
        (31.0, 0.5, Level.PROBLEM, "31.0 s ahead of"),
        (-3600.0, 0.0, Level.PROBLEM, "3600.0 s behind"),
    ],
)
def test_clocks(ahead: float, uncertainty: float, level: Level, says: str) -> None:
    found = judge_clock("server a", ahead, uncertainty)
    assert found.level is level
    assert says in found.message
    assert ("chrony" in found.advice) == (level is not Level.OK)


@pytest.mark.parametrize(("seconds", "level"), [(0.02, Level.OK), (0.5, Level.WARNING), (5.0, Level.PROBLEM)])
def test_latency(seconds: float, level: Level) -> None:
    assert judge_latency("bucket", seconds).level is level


@pytest.mark.parametrize(
    ("left", "level", "says"),
    [
        (100 * DAY, Level.OK, "100 days"),
        (30 * DAY, Level.WARNING, "30 days"),
        (DAY, Level.WARNING, "24.0 hours"),
        (0.0, Level.PROBLEM, "has expired"),
        (-DAY, Level.PROBLEM, "has expired"),
    ],
)
def test_expiry(left: float, level: Level, says: str) -> None:
    found = judge_expiry("CA", expires=1e9 + left, now=1e9, warning_seconds=60 * DAY, advice="rotate it")
    assert found.level is level
    assert says in found.message
    assert found.advice == ("" if level is Level.OK else "rotate it")


def test_versions() -> None:
    assert judge_version("server a", "1.2.0", "1.2.0").level is Level.OK
    other = judge_version("server a", "1.1.0", "1.2.0")
    assert (other.level, other.message) == (Level.WARNING, "it runs 1.1.0, this program is 1.2.0")


def test_a_record_has_no_empty_advice() -> None:
    assert Finding(Level.OK, "clock", "server a", "fine").record() == {
        "level": "ok",
        "check": "clock",
        "subject": "server a",
        "message": "fine",
        "advice": None,
    }
