"""The dashboard's files: complete, small, and in step with the programs they show."""

import datetime
import re
from pathlib import Path

from nstance.admin.http import forecasts
from nstance.admin.http.rate_limit import MAX_CLIENTS, Rate, RateLimit
from nstance.admin.http.sessions import LIFE_SECONDS, Sessions
from nstance.admin.shard import alarms
from nstance.model.decision import ReasonCode
from nstance.model.roles import Role
from nstance.sim.forecasting.scenarios import SCENARIOS
from nstance.sim.rng import SeededRng
from support.hand_clock import HandClock

FOLDER = Path(__file__).parents[3] / "src" / "nstance" / "admin" / "dashboard"
LIBRARY_BYTES = 150_000


def test_libraries_are_small_named_by_version_and_licensed() -> None:
    vendored = [path for path in (FOLDER / "vendor").iterdir() if path.suffix != ".txt"]
    assert sum(path.stat().st_size for path in vendored) < LIBRARY_BYTES
    licenses = (FOLDER / "vendor" / "LICENSES.txt").read_text()
    for path in vendored:
        [(name, version)] = re.findall(r"^([a-z]+)(?:-hooks)?-(\d+\.\d+\.\d+)\.\w+$", path.name)
        assert f"==== {name}-{version} ====" in licenses


def test_every_import_is_a_file_and_nothing_comes_from_elsewhere() -> None:
    for path in FOLDER.rglob("*.js"):
        if path.parent.name == "vendor":
            continue
        text = path.read_text()
        for target in re.findall(r'from "([^"]+)"', text):
            assert (path.parent / target).is_file(), f"{path.name} imports {target}"
        assert not re.findall(r"https?://", text), path.name
        assert "innerHTML" not in text, path.name
        assert "eval(" not in text, path.name
    page = (FOLDER / "index.html").read_text()
    assert not re.findall(r"https?://|<script>|<style|\son\w+=|\sstyle=", page)
    for target in re.findall(r'(?:src|href)="/dashboard/([^"]+)"', page):
        assert (FOLDER / target).is_file()


def test_scenarios_and_reasons_are_those_of_the_programs() -> None:
    assert set(forecasts.SCENARIOS) == set(SCENARIOS)
    text = (FOLDER / "pages" / "forecast.js").read_text()
    for scenario in SCENARIOS:
        assert re.search(rf'"?{scenario}"?: "', text), scenario
    known = re.findall(r"const KNOWN = \[(.*?)\]", (FOLDER / "pages" / "events.js").read_text(), re.DOTALL)[0]
    assert set(re.findall(r'"([a-z-]+)"', known)) == {code.value for code in ReasonCode}


def shard(**changes: object) -> dict[str, object]:
    base = {"shard": "a", "reachable": True, "error": None, "control_plane": None, "config": None, "unknown_vms": 0}
    return {**base, "identity_expires": "2100-01-01T00:00:00Z", **changes}


def leader(**changes: object) -> dict[str, object]:
    base = {"provider_rate": 0.0, "standbys": [], "metrics": [], "alarms": [], "storage_failed": None}
    return {**base, **changes}


def group(**changes: object) -> dict[str, object]:
    return {
        "shard": "a",
        "group": "web",
        "blocked": [],
        "last_error": None,
        "rollout": None,
        "paused": False,
        "exhausted_offers": [],
        **changes,
    }


def test_what_needs_attention_the_worst_first() -> None:
    assert alarms.find([shard()], [group()], now=0.0) == []
    assert alarms.find([shard(reachable=False, error=alarms.CONNECTING)], [], now=0.0) == [], "nothing is known yet"
    metrics = [
        {"name": "nstance_event_loop_lag_seconds", "labels": {}, "value": 3.0},
        {"name": "nstance_certificate_expiry_timestamp_seconds", "labels": {"kind": "ca"}, "value": 20 * 86400.0},
        {"name": "nstance_certificate_expiry_timestamp_seconds", "labels": {"kind": "server"}, "value": 3600.0},
    ]
    control_plane = leader(provider_rate=2.0, standbys=[{"server": "b", "answered_ms": 9000}], metrics=metrics)
    absence = {"kind": "mass-absence", "message": "5 VMs are missing"}
    failing = leader(alarms=[absence], storage_failed="1970-01-01T00:00:00.001Z")
    offer = {"market": "spot", "instance_type": "small", "subnet": None, "message": "dry", "retry": None}
    found = alarms.find(
        [
            shard(reachable=False, error="no answer", unknown_vms=2, control_plane=control_plane),
            shard(shard="b", config={"errors": ["bad"]}, control_plane=failing),
        ],
        [
            group(paused=True, blocked=["no secret"], last_error="no secret"),
            group(group="api", rollout={"outcome": "halted", "message": "two failed"}),
            group(group="ci", exhausted_offers=[{**offer, "server_error": False}] * 3),
            group(group="db", last_error="no capacity", rollout={"outcome": "paused", "message": None}),
        ],
        now=1.0,
    )
    assert [(each["level"], each["kind"], each["group"]) for each in found] == [
        ("bad", "unreachable", None),
        ("bad", "certificate", None),
        ("bad", "rollout", "api"),
        ("bad", "error", "db"),
        ("bad", "blocked", "web"),
        ("bad", "config", None),
        ("bad", "mass-absence", None),
        ("bad", "storage", None),
        ("warning", "unknown-vms", None),
        ("warning", "throttled", None),
        ("warning", "standby", None),
        ("warning", "lag", None),
        ("warning", "certificate", None),
        ("warning", "capacity", "ci"),
        ("warning", "rollout", "db"),
        ("warning", "paused", "web"),
    ]
    [capacity] = [each["message"] for each in found if each["kind"] == "capacity"]
    assert capacity == "no capacity: spot small: dry; 2 more offers"
    later = alarms.find([shard(control_plane=leader(storage_failed="1970-01-01T00:00:00.001Z"))], [], now=301.0)
    assert later == []


def test_losses_need_attention_for_a_while_also_after_they_were_made_good() -> None:
    def event(minute: int, reason: str, instance: str | None, group: str = "web") -> dict[str, object]:
        time = f"2030-01-01T00:{minute:02}:00.000Z"
        return {"shard": "a", "group": group, "time": time, "reason": reason, "instance_id": instance}

    events = [
        event(1, "spot-termination", "old"),
        event(8, "spot-termination", "one"),
        event(8, "drain-started", "one"),
        event(9, "spot-termination", "two"),
        event(9, "gone", "three"),
        event(9, "gone", "three"),
        event(9, "requested", "four"),
        event(9, "gone", None),
        event(9, "unhealthy", "five", group="api"),
    ]
    now = datetime.datetime(2030, 1, 1, 0, 10, tzinfo=datetime.UTC).timestamp()
    found = alarms.find([shard()], [group()], events, now=now)
    assert [(each["level"], each["group"], each["message"]) for each in found] == [
        ("warning", "api", "1 instance lost within the last five minutes: 1 unhealthy"),
        ("warning", "web", "3 instances lost within the last five minutes: 2 spot-termination, 1 gone"),
    ]
    assert alarms.find([shard()], [group()], events, now=now + 600) == []


def test_sessions_end_and_belong_to_their_process() -> None:
    clock = HandClock()
    sessions, other = Sessions(clock, SeededRng("one")), Sessions(clock, SeededRng("two"))
    session = sessions.create("ada", Role.OPERATOR)
    cookie = sessions.cookie(session)
    assert sessions.read(cookie) == session
    assert other.read(cookie) is None
    assert sessions.has_token(session, sessions.csrf_token(session))
    assert not sessions.has_token(sessions.create("ada", Role.OPERATOR), sessions.csrf_token(session))
    for wrong in ("", ".", "a.b", cookie + "0", cookie[1:], "x" * 5000):
        assert sessions.read(wrong) is None
    clock.now += LIFE_SECONDS + 1
    assert sessions.read(cookie) is None


def test_a_rate_limit_for_each_client_and_not_for_all_together() -> None:
    clock = HandClock()
    limit = RateLimit(Rate(2.0, 3.0), clock)
    assert [limit.delay("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert limit.delay("b") == 0.0
    clock.now += 0.5
    assert limit.delay("a") == 0.0
    for number in range(2 * MAX_CLIENTS):
        limit.delay(str(number))
    assert len(limit._buckets) == MAX_CLIENTS
