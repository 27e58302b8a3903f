"""The shard commands before anybody is asked: flags, records, judgements, lines."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result
from grpclib.const import Status
from hypothesis import given
from hypothesis import strategies as st

from nstance.admin import client, errors, main, output, shard_flags
from nstance.admin.shard import event_printer, fanout, groups, history, instances, overview, records, status_tree
from nstance.model.ids import ShardId
from nstance.v1 import operator_pb2

HERE = ShardId("a")
SERVERS = {"NSTANCE_ADMIN_SERVERS": "a=127.0.0.1:1,b=127.0.0.1:1"}
NOW = 1_800_000_000.0


def invoke(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(main.root, list(words), env=SERVERS | environment)


# ---- flags


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a=h:8993", {"a": ("h:8993",)}),
        ("a=h:1,b=h2:2", {"a": ("h:1",), "b": ("h2:2",)}),
        ("a=h1:8993|h2:8993", {"a": ("h1:8993", "h2:8993")}),
        (" a=[::1]:1 , b=10.0.0.1:2 ", {"a": ("[::1]:1",), "b": ("10.0.0.1:2",)}),
    ],
)
def test_servers_as_people_write_them(text: str, wanted: dict[str, tuple[str, ...]]) -> None:
    assert shard_flags.servers(text) == wanted


WRONG = [
    "",
    "a",
    "a=",
    "a=h",
    "a=h:0",
    "a=h:70000",
    "a=:8993",
    "=h:1",
    "A=h:1",
    "a=h:1,a=g:1",
    "a=h:1,",
    "a=h:1|",
    "a=h:x",
]


@pytest.mark.parametrize("text", WRONG)
def test_servers_that_make_no_sense(text: str) -> None:
    with pytest.raises(click.BadParameter):
        shard_flags.servers(text)


@given(st.text())
def test_no_text_breaks_the_servers(text: str) -> None:
    try:
        found = shard_flags.servers(text)
    except click.BadParameter:
        return
    assert all(hosts and all(hosts) for hosts in found.values())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["group", "list"], "exactly one of --shard and --all-shards"),
        (["group", "list", "--shard", "a", "--all-shards"], "exactly one of --shard and --all-shards"),
        (["group", "list", "--shard", "c"], "--servers has no shard c; it has a, b"),
        (["group", "list", "--shard", "a", "--timeout", "0"], "between 1ms and 24h"),
        (["group", "list", "--shard", "a", "--timeout", "5"], "expected a duration"),
        (["group", "list", "--shard", "a", "--sevrers", "x"], "no such option"),
        (["group", "scale", "web", "--shard", "a"], "missing argument 'SIZE'"),
        (["group", "scale", "web", "-1", "--shard", "a"], "expected a number of 0 or more, found '-1'"),
        (["group", "scale", "web", "99999999999", "--shard", "a"], "from 0 to 2147483647, found '99999999999'"),
        (["group", "scale", "web", "2.5", "--shard", "a"], "expected a whole number"),
        (["group", "scale", "web", "\u0663", "--shard", "a"], "expected a whole number"),
        (
            ["group", "create", "web", "--template", "t", "--max-surge", "1_0", "--shard", "a"],
            "expected a whole number",
        ),
        (["group", "create", "web", "--template", "\udcff", "--shard", "a"], "'--template': expected text in UTF-8"),
        (["group", "update", "web", "--var", "a=\udcff", "--shard", "a"], "'--var': expected text in UTF-8"),
        (["events", "--instance", "web_1", "--shard", "a"], "expected an instance ID"),
        (["wait", "--within", "-1s", "--shard", "a"], "expected a duration of 0s or more"),
        (["group", "scale", "Web", "1", "--shard", "a"], "lower-case letters"),
        (["group", "create", "web", "--shard", "a"], "missing option '--template'"),
        (["group", "create", "web", "--template", "t", "--var", "x", "--shard", "a"], "expected NAME=VALUE"),
        (["group", "update", "web", "--shard", "a"], "nothing to change"),
        (["instance", "show", "web_1", "--shard", "a"], "expected an instance ID"),
        (["events", "--limit", "1001", "--shard", "a"], "1001"),
        (["wait", "--within", "soon", "--shard", "a"], "expected a duration"),
        (["nonsense"], "no such command 'nonsense'; see"),
        (["instnace", "list"], "no such command 'instnace' (did you mean instance?); see"),
        (["group", "lst"], "no such command 'lst' (did you mean list?); see"),
        (["cluster", "secret", "ptu"], "no such command 'ptu' (did you mean put?); see"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(words: list[str], expected: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.fullmatch(r"nstance-admin: .*see `root.* --help`\n", result.stderr)
    assert expected in result.stderr


def test_a_flag_outweighs_the_environment(tmp_path: Path) -> None:
    """With NSTANCE_ADMIN_SHARD set, --all-shards still means all."""
    result = invoke("group", "list", "--all-shards", "--identity-dir", str(tmp_path / "no"), NSTANCE_ADMIN_SHARD="a")
    assert result.exit_code == 1
    assert "there is no identity in" in result.stderr


def test_without_servers_nothing_is_asked() -> None:
    result = CliRunner().invoke(main.root, ["status", "--shard", "a"], env={"NSTANCE_ADMIN_SERVERS": None})
    assert result.exit_code == 2
    assert "missing --servers" in result.stderr


# ---- changes of groups


def desired(**settings: Any) -> groups.GroupChange:
    return groups.GroupChange(**{"vars": {}, **settings})


def test_a_change_touches_only_what_it_names() -> None:
    before = operator_pb2.GroupConfig(template="t", size=3, instance_type="big", vars={"a": "1", "b": "2"})
    after = operator_pb2.GroupConfig()
    after.CopyFrom(before)
    desired(vars={"a": "9"}, unset_vars=("b", "c"), max_surge=2).apply(after)
    assert (after.template, after.size, after.instance_type, dict(after.vars)) == ("t", 3, "big", {"a": "9"})
    assert (after.update_set, after.max_surge, after.max_unavailable) == (True, 2, 0)
    desired(size=0, instance_type="", max_unavailable=1, load_balancers=("x",), args="{}").apply(after)
    assert (after.HasField("size"), after.size, after.instance_type) == (True, 0, "")
    assert (after.max_surge, after.max_unavailable) == (2, 1)
    assert (list(after.load_balancers), after.args_json) == (["x"], "{}")


def test_an_empty_change_is_recognized() -> None:
    assert desired().is_empty
    assert not desired(size=0).is_empty
    assert not desired(instance_type="").is_empty
    assert not desired(unset_vars=("a",)).is_empty
    assert not desired(vars={"a": ""}).is_empty


class Contested:
    """A shard where somebody else changes the group before each of the first calls."""

    shard = HERE

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.group = operator_pb2.GroupStatus(
            key="web", etag="0", config=operator_pb2.GroupConfig(template="t", size=1)
        )

    async def call(self, rpc: str, **fields: Any) -> Any:
        if rpc == "ListGroups":
            return operator_pb2.ListGroupsResponse(groups=[self.group])
        if self.losses:
            self.losses -= 1
            self.group.etag += "+"
            self.group.config.vars["theirs"] = self.group.etag
        if fields["etag"] != self.group.etag:
            raise client.ShardError("the group was changed", Status.ABORTED)
        self.group.config.CopyFrom(fields["config"])
        return operator_pb2.UpsertGroupResponse(group=self.group)


async def test_a_change_is_made_again_over_what_somebody_else_changed() -> None:
    shard = Contested(losses=2)
    await groups.change(cast("client.Client", shard), "web", desired(size=5).apply, dry_run=False)
    assert (shard.group.config.size, dict(shard.group.config.vars)) == (5, {"theirs": "0++"})
    with pytest.raises(client.ShardError, match="changed"):
        await groups.change(cast("client.Client", Contested(losses=99)), "web", desired(size=5).apply, dry_run=False)


# ---- answers


class Crowded:
    """A shard with more instances than one answer holds."""

    def __init__(self, count: int) -> None:
        self.all = [operator_pb2.InstanceStatus(instance_id=f"i{number:05}") for number in range(count)]

    async def call(self, rpc: str, *, group: str, include_deleted: bool, after_id: str, limit: int) -> Any:
        assert 0 < limit <= 5_000
        later = [each for each in self.all if each.instance_id > after_id]
        return operator_pb2.ListInstancesResponse(instances=later[:limit], more=limit < len(later))


@pytest.mark.parametrize("count", [0, 1, instances.PAGE, instances.PAGE + 1, 3 * instances.PAGE])
async def test_all_instances_are_found_page_by_page(count: int) -> None:
    shard = Crowded(count)
    assert await instances.list_instances(cast("client.Client", shard)) == shard.all


def test_what_is_found_somewhere_need_not_be_everywhere() -> None:
    def absent() -> errors.CommandError:
        return client.ShardError("there is no such instance", Status.NOT_FOUND)

    def dead() -> errors.CommandError:
        return client.ShardError("no answer", Status.UNAVAILABLE)

    a, b, c = ShardId("a"), ShardId("b"), ShardId("c")
    fanout.Answers(results=[(a, 1)], failures=[(b, absent())]).ignore_not_found().check()
    with pytest.raises(errors.CommandError, match="shard c: no answer"):
        fanout.Answers(results=[(a, 1)], failures=[(b, absent()), (c, dead())]).ignore_not_found().check()
    nowhere: fanout.Answers[int] = fanout.Answers(failures=[(a, absent())])
    with pytest.raises(errors.CommandError, match="shard a: there is no such instance"):
        nowhere.ignore_not_found().check()


def test_an_identity_that_another_user_left_in_the_temporary_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "identity").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    owner = (tmp_path / "identity").stat().st_uid
    if owner == 0:
        os.chown(tmp_path / "identity", 54321, -1)
    with pytest.raises(errors.CommandError, match="belongs to another user"):
        client.load(tmp_path / "identity", now=NOW)


# ---- judgements


def group(**fields: Any) -> records.Record:
    return records.group(HERE, operator_pb2.GroupStatus(**{"key": "web", "size": 2, **fields}))


def instance(state: str = "running", **fields: Any) -> records.Record:
    status = operator_pb2.InstanceStatus(
        **{"instance_id": "i", "group": "web", "state": state, "connected": True, **fields}
    )
    return records.instance(HERE, status)


@pytest.mark.parametrize(
    ("status", "members", "wanted"),
    [
        ({"actual_size": 2, "ready_size": 2}, [instance(), instance()], []),
        ({"actual_size": 2, "ready_size": 2}, [instance(), instance(), instance(on_demand=True)], []),
        ({"actual_size": 2, "ready_size": 1}, [instance(), instance("starting")], ["1/2 ready"]),
        ({"actual_size": 1, "ready_size": 1, "paused": True}, [instance()], ["1/2 ready", "paused"]),
        ({"actual_size": 2, "ready_size": 2, "paused": True}, [instance(), instance()], []),
        ({"actual_size": 3, "ready_size": 3}, [instance()] * 3, ["1 more than desired"]),
        ({"actual_size": 2, "ready_size": 2}, [instance(), instance("deleting")], ["1 leaving"]),
        ({"actual_size": 2, "ready_size": 2}, [instance("draining", drifted=True)], ["1 leaving"]),
        ({"actual_size": 2, "ready_size": 2}, [instance(), instance(drifted=True)], ["1 to be replaced"]),
        ({"actual_size": 2, "ready_size": 2}, [instance(), instance(connected=False)], ["1 without agent"]),
        (
            {"actual_size": 2, "ready_size": 1, "not_ready": 1},
            [instance(ready=True), instance(not_ready="failing checks: up")],
            ["1/2 ready", "1 not ready: failing checks: up"],
        ),
        (
            {"actual_size": 2, "ready_size": 2},
            [instance(), instance(), instance(on_demand=True, not_ready="its files are not installed yet")],
            ["1 not ready: its files are not installed yet"],
        ),
        ({"actual_size": 2, "ready_size": 2, "blocked": ["x: no secret"]}, [instance()] * 2, ["blocked: x: no secret"]),
    ],
)
def test_when_a_group_is_stable(status: dict[str, Any], members: list[records.Record], wanted: list[str]) -> None:
    assert overview.unsettled_reasons(group(**status), members) == wanted


@pytest.mark.parametrize(
    ("outcome", "wanted"),
    [
        ("complete", []),
        ("superseded", []),
        ("rolling", ["rollout under way"]),
        ("paused", ["rollout paused: after 1 canary"]),
        ("halted", ["rollout halted: 2 did not become ready"]),
    ],
)
def test_a_group_is_not_stable_before_its_rollout_is_complete(outcome: str, wanted: list[str]) -> None:
    messages = {"paused": "after 1 canary", "halted": "2 did not become ready"}
    event = group(actual_size=2, ready_size=2) | {
        "rollout": {"outcome": outcome, "outdated": 0, "message": messages.get(outcome)}
    }
    assert overview.unsettled_reasons(event, [instance()] * 2) == wanted


def test_what_is_not_ready_is_shown_in_the_list_and_the_tree(capsys: pytest.CaptureFixture[str]) -> None:
    check = operator_pb2.CheckStatus(name="up", message="refused", since_unix_ms=1000)
    one = instance(not_ready="failing checks: up", checks=[check])
    row = records.instance_row(one, now=NOW)
    assert (row["ready"], row["notes"]) == ("no", ["not ready: failing checks: up"])
    assert records.instance_row(instance(), now=NOW)["ready"] == "yes"  # also of a server that knows no readiness
    assert records.instance_lines(one)["checks"] == ["up failing since 1970-01-01T00:00:01Z (refused)"]
    shown = overview.group_view(group(size=1, actual_size=1, not_ready=1, blocked=["token: no secret"]), [one])
    assert not shown.healthy
    config = records.config(HERE, operator_pb2.ConfigStatus(leader="s1", epoch=7))
    output.console().print(
        status_tree.draw(HERE, overview.ShardView(config, [shown], ungrouped=[], problems=[]), now=NOW)
    )
    text = capsys.readouterr().out
    assert "0/1 groups healthy, 0/1 instances ready" in text
    assert "blocked: token: no secret" in text
    assert text.count("token: no secret") == 1
    assert "not ready: failing checks: up" in text


def test_the_tree_folds_and_opens_and_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    bad = group(actual_size=1, ready_size=1, last_error="quota \x1b[2J reached")
    event = records.EVENT.fill(
        operator_pb2.Event(time_unix_ms=1000, group="web", reason="gone", message="it went"), shard=HERE
    )
    config = records.config(HERE, operator_pb2.ConfigStatus(leader="s1", epoch=7))
    many = [instance("starting", instance_id=f"i{number}") for number in range(20)]
    healthy = [overview.group_view(group(key=f"g{n}", size=0), ()) for n in range(20)]
    shown = overview.ShardView(
        config,
        [overview.group_view(bad, many, [event]), *healthy],
        ungrouped=[instance(group="gone")],
        problems=[event],
        unknown_vms=[],
    )
    output.console().print(status_tree.draw(HERE, shown, now=NOW))
    text = capsys.readouterr().out
    assert "● shard a  leader s1 (epoch 7)  20/21 groups healthy, 1/2 instances ready" in text
    assert "error: quota \\x1b[2J reached" in text
    assert "and 12 more: see `nstance-admin instance list`" in text
    assert "gone it went" in text
    assert "and 8 more" in text
    assert "instances of groups that are not configured (deleted, or held)" in text
    assert "\x1b" not in text
    assert not shown.healthy


def test_a_settled_group_shows_no_problems_of_the_past() -> None:
    """A paused group listed a rollout that had been rolled back, and instances long gone."""
    events = [
        records.EVENT.fill(operator_pb2.Event(group="web", reason=reason, instance_id=id), shard=HERE)
        for reason, id in (("gone", "old"), ("rollout-halted", ""), ("security", "i"))
    ]
    here = instance(ready=True)
    settled = overview.group_view(group(size=1, actual_size=1, ready_size=1, paused=True), [here], events)
    assert [each["reason"] for each in settled.problems] == ["security"]
    unsettled = overview.group_view(group(size=2, actual_size=1, ready_size=1), [here], events)
    assert [each["reason"] for each in unsettled.problems] == ["gone", "rollout-halted", "security"]


def test_many_problems_of_one_kind_do_not_hide_a_retry() -> None:
    def event(seconds: int, reason: str) -> records.Record:
        return records.EVENT.fill(
            operator_pb2.Event(time_unix_ms=1000 * seconds, group="web", reason=reason), shard=HERE
        )

    events = [
        event(1, "gone"),
        event(2, "unregistered"),
        event(3, "back-off"),
        *(event(n, "unregistered") for n in (4, 5)),
    ]
    shown = overview.group_view(group(size=2), (), [*events, event(6, "spot-termination")])
    assert [each["reason"] for each in shown.problems] == ["back-off", "unregistered", "spot-termination"]
    assert shown.problems[1]["time"].endswith(":05.000Z")


def test_of_what_concerns_the_whole_shard_only_the_latest_word_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def event(seconds: int, reason: str, message: str) -> records.Record:
        return records.EVENT.fill(
            operator_pb2.Event(time_unix_ms=1000 * seconds, reason=reason, message=message), shard=HERE
        )

    events = [event(1, "mass-absence", "begins"), event(2, "throttled", "slow"), event(3, "mass-absence", "is over")]
    config = records.config(HERE, operator_pb2.ConfigStatus(leader="s1", epoch=7))
    output.console().print(
        status_tree.draw(HERE, overview.ShardView(config, [], ungrouped=[], problems=events, unknown_vms=[]), now=NOW)
    )
    text = capsys.readouterr().out
    assert "begins" not in text
    assert text.index("slow") < text.index("is over")


def test_status_names_groups_that_lost_instances_lately(capsys: pytest.CaptureFixture[str]) -> None:
    config = records.config(HERE, operator_pb2.ConfigStatus(leader="s1", epoch=7))
    message = "3 instances lost within the last five minutes: 3 spot-termination"
    lost = {"level": "warning", "kind": "interruptions", "shard": HERE, "group": "web", "message": message}
    view = overview.ShardView(config, [], ungrouped=[], problems=[], alarms=[lost])
    output.console().print(status_tree.draw(HERE, view, now=NOW))
    assert f"! web {message}" in " ".join(capsys.readouterr().out.split())
    assert overview.document(view)["alarms"] == [lost]


# ---- records


def test_a_deadline_on_another_day_has_its_date() -> None:
    def notes(seconds: float) -> list[str]:
        status = operator_pb2.InstanceStatus(state="draining", drain_deadline_unix_ms=int(1000 * (NOW + seconds)))
        return records.instance_notes(records.instance(HERE, status), now=NOW)

    assert notes(60) == ["until 08:01:00Z"]
    assert notes(86400) == ["until 2027-01-16 08:00Z"]


def test_equal_creations_are_one_row_and_long_messages_are_shown_once() -> None:
    def action(act: str, id: str = "", message: str = "short") -> records.Record:
        event = operator_pb2.PlannedAction(action=act, instance_id=id, reason="r", message=message)
        return records.ACTION.fill(event, shard=HERE)

    long = "a message of many words"
    rows = records.plan_rows(
        [action("create"), action("create"), action("drain", "x", long), action("drain", "y", long)]
    )
    assert [(row["action"], row["instance"], row["message"]) for row in rows] == [
        ("create ×2", None, "short"),
        ("drain", "x", long),
        ("drain", "y", "as above"),
    ]


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(-5, "0s"), (0.9, "0s"), (59, "59s"), (60, "1m"), (61, "1m1s"), (3661, "1h1m"), (90061, "1d1h"), (864000, "10d")],
)
def test_ages_have_two_units(seconds: float, wanted: str) -> None:
    assert records.age(seconds) == wanted


def test_events_of_several_shards_are_merged_by_time() -> None:
    def events(*times: int) -> list[Any]:
        return [operator_pb2.Event(time_unix_ms=time, id=time) for time in times]

    merged = history.merge_events([(ShardId("a"), events(1, 4)), (ShardId("b"), events(2, 3))], limit=3)
    assert [each["shard"] for each in merged] == ["b", "b", "a"]
    assert history.merge_events([(ShardId("a"), events(1, 4))], limit=0) == []


EVENT = {
    "shard": "a",
    "time": "2026-11-15T10:07:28.123Z",
    "group": "web",
    "instance_id": "web-1",
    "reason": "gone",
    "message": "evil \x1b[2J\ntext " + "word " * 20,
}


def test_event_lines_are_one_line_in_a_pipe_and_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    line = click.unstyle(event_printer.Printer("table", several=True).one(EVENT))
    assert line.startswith("11-15 10:07:28Z  gone              a/web: evil \\x1b[2J\\ntext word")
    assert line.count("\n") == 1
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    wrapped = click.unstyle(event_printer.Printer("table", several=False).one(EVENT)).splitlines()
    assert len(wrapped) > 2
    assert all(len(each) <= 80 for each in wrapped)
    assert all(each.startswith(" " * 35) for each in wrapped[1:])


def test_exhausted_offers_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    retry = int(NOW) * 1000
    offers = [
        operator_pb2.ExhaustedOffer(
            market="spot", instance_type="m7", subnet="s1", message="full", retry_unix_ms=retry
        ),
        operator_pb2.ExhaustedOffer(subnet="s2", message="503", server_error=True),
        *(operator_pb2.ExhaustedOffer(instance_type=f"t{n}") for n in range(3)),
    ]
    record = group(
        instance_types=["m7", "m6"], markets=["spot"], prefer="strict", exhausted_offers=offers, blocked=["no"]
    )
    lines = records.group_lines(record)["exhausted_offers"]
    assert lines[:3] == [
        "spot m7 in s1 until 2027-01-15T08:00:00Z: full",
        "the offer in s2: 503",
        "t0: no capacity",
    ]
    row = records.group_row(record)
    assert (row["type"], row["notes"][0]) == ("m7, m6", "5 exhausted offers")
    config = records.config(HERE, operator_pb2.ConfigStatus(leader="s1", epoch=7))
    view = overview.ShardView(config, [overview.group_view(record, [])], ungrouped=[], problems=[])
    output.console().print(status_tree.draw(HERE, view, now=NOW))
    text = capsys.readouterr().out
    assert "no capacity: spot m7 in s1" in text
    assert "server errors: the offer in s2: 503" in text
    assert "and 1 more: see `nstance-admin group show web`" in text


def test_top_takes_the_flags_of_shard_commands_and_needs_a_terminal(tmp_path: Path) -> None:
    """As far as it gets without a terminal: an identity that is missing is named first."""
    result = invoke("top", "--identity-dir", str(tmp_path / "nobody"), "--tenant", "acme")
    assert result.exit_code == 1
    assert "there is no identity in" in result.stderr
    assert "expected either --shard or --all-shards" in invoke("top", "--shard", "a", "--all-shards").stderr
