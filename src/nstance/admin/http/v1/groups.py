"""Groups: reading, planning and changing them."""

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from nstance.admin.client import Client
from nstance.admin.http.fleet import Fleet
from nstance.admin.http.problems import ProblemError
from nstance.admin.http.v1 import fields, schemas
from nstance.admin.http.v1.fields import Fields, field
from nstance.admin.http.v1.replies import Shards, answer
from nstance.admin.http.v1.routing import SHARD, Call, RouteGroup, changing, route
from nstance.admin.json_schema import list_schema, record_schema, ref
from nstance.admin.shard import fanout, groups, records
from nstance.admin.shard.costs import COST_PLAN
from nstance.admin.shard.groups import GroupChange
from nstance.admin.shard.records import Record

SETTINGS: Fields = {
    "size": field(fields.COUNT, "Number of instances."),
    "instance_type": field(fields.TEXT, "The provider's name; an empty text for the template's."),
    "subnet_pool": field(fields.TEXT, "Where instances are created; an empty text for the template's."),
    "vars": field(fields.VARS, "Vars for the templates; others stay as they are."),
    "drain_timeout": field(fields.TEXT, "The longest wait for a drain, such as 30s; 0: no wait."),
    "max_surge": field(fields.COUNT, "VMs above the size during a rollout."),
    "max_unavailable": field(fields.COUNT, "Ready instances missing during a rollout."),
    "order": field(fields.choice("parallel", "serial"), "serial: one instance at a time."),
    "settle": field(fields.TEXT, "Serial: time that one must be ready before the next."),
    "canary": field(fields.COUNT, "Instances to replace before the rollout pauses."),
    "pause_after_canary": field(fields.TEXT, "How long it pauses: a duration, wait or stop."),
    "max_failures": field(fields.COUNT, "New instances that may fail before it halts."),
    "on_failure": field(fields.choice("halt", "rollback"), "What to do then."),
    "load_balancers": field(fields.TEXTS, "Replaces all."),
    "args": field(fields.OBJECT, "Provider arguments."),
}
TEMPLATE = field(fields.TEXT, "The template of its instances.")
UNSET: Fields = {
    "unset_size": field(fields.FLAG, "Reset the size to the config file's."),
    "unset_instance_type": field(fields.FLAG, "Reset the instance type to the config file's."),
    "unset_vars": field(fields.TEXTS, "Reset these vars to the config file's."),
}
NEW: Fields = {
    "group": field(fields.NAME, "Its name.", required=True),
    "template": field(fields.TEXT, TEMPLATE.about, required=True),
    **SETTINGS,
}
REVISION: Fields = {"revision": field(fields.TEXT, "Of the group's history; default: the last complete one.")}
SIZE: Fields = {"size": field(fields.COUNT, "Number of instances.", required=True)}
ONE = "/v1/groups/{group}"


class Groups(RouteGroup):
    tag = "groups"

    def __init__(self, shards: Shards, fleet: Fleet) -> None:
        self._shards = shards
        self._fleet = fleet

    # ---- reading

    @route("GET", "/v1/groups", "All groups with their sizes.", query=SHARD, reply=schemas.listed("groups", "Group"))
    async def list(self, call: Call) -> web.Response:
        answers = await self._shards.ask(call, groups.list_groups)
        return answer(call, {"groups": _groups(answers.flatten())}, answers)

    @route("GET", ONE, "A group in every shard that has it.", query=SHARD, reply=schemas.listed("groups", "Group"))
    async def show(self, call: Call) -> web.Response:
        answers = await self._shards.ask(call, lambda client: groups.find(client, call.path["group"]))
        answers.ignore_not_found()
        return answer(call, {"groups": _groups(answers)}, answers)

    @route("GET", f"{ONE}/plan", "What will be done to a group and why.", query=SHARD, reply=ref("Plan"))
    @route(
        "POST",
        f"{ONE}/plan",
        "What would be done to a group with other settings. Changes nothing.",
        query=SHARD,
        body={"template": TEMPLATE, **SETTINGS, **UNSET},
        reply=ref("Plan"),
    )
    async def plan(self, call: Call) -> web.Response:
        change = _change(call)
        answers = await self._shards.ask(call, lambda client: groups.plan(client, call.path["group"], change))
        answers.ignore_not_found()
        body = {
            "plan": _actions(answers.map(lambda each: each.actions)),
            "rollouts": _rollouts(answers),
            "costs": _costs(answers),
            "paused": any(each.paused for _, each in answers.results),
            "warnings": [warning for _, each in answers.results for warning in each.warnings],
        }
        return answer(call, body, answers)

    @route(
        "GET",
        f"{ONE}/history",
        "The revisions of a group, newest first.",
        query=SHARD,
        reply=schemas.listed("groups", "History"),
    )
    async def history(self, call: Call) -> web.Response:
        name = call.path["group"]
        answers = await self._shards.ask(call, lambda client: groups.history(client, name))
        answers.ignore_not_found()
        found = [
            {"shard": shard, "group": name, "revisions": [records.REVISION.fill(each) for each in revisions]}
            for shard, revisions in answers.results
        ]
        return answer(call, {"groups": found}, answers)

    @route(
        "GET",
        f"{ONE}/sizes",
        "How the sizes of a group changed since this program started.",
        query=SHARD,
        reply=record_schema({"groups": list_schema(ref("Sizes"))}),
    )
    async def sizes(self, call: Call) -> web.Response:
        name = call.path["group"]
        feeds = [self._fleet.feeds[client.shard] for client in self._shards.of(call)]
        found = [
            {"shard": feed.shard, "group": name, "sizes": [*feed.sizes[name]]} for feed in feeds if name in feed.sizes
        ]
        if not found:
            raise ProblemError(404, f"there is no group {name}")
        return answer(call, {"groups": found})

    # ---- changing

    @changing("POST", "/v1/groups", "Create a group.", body=NEW)
    async def create(self, call: Call) -> web.Response:
        change, name = _change(call), call.body["group"]
        return await self._upsert(call, lambda client: groups.create(client, name, change, dry_run=call.is_dry_run))

    @changing(
        "PATCH",
        ONE,
        "Change a group. What is not given stays as it is.",
        body={"template": TEMPLATE, **SETTINGS, **UNSET},
    )
    async def update(self, call: Call) -> web.Response:
        change = _change(call)
        if change.is_empty:
            raise ProblemError(400, "nothing to change: expected at least one setting, such as size or vars")
        return await self._edit(call, change)

    @changing("POST", f"{ONE}/scale", "Set the size of a group.", body=SIZE)
    async def scale(self, call: Call) -> web.Response:
        return await self._edit(call, GroupChange(size=call.body["size"], vars={}))

    async def _edit(self, call: Call, change: GroupChange) -> web.Response:
        """With If-Match only if the group still has that `etag`, otherwise over whatever others change meanwhile."""
        name = call.path["group"]

        async def work(client: Client) -> Any:
            return await groups.change(
                client, name, change.apply, unset=change.unset, dry_run=call.is_dry_run, expected=call.expected_etag
            )

        return await self._upsert(call, work)

    async def _upsert(self, call: Call, work: Callable[[Client], Awaitable[Any]]) -> web.Response:
        answers = await self._shards.change(call, work)
        return changed(
            call,
            answers,
            plan=_actions(answers.map(lambda each: each.plan)),
            rollouts=_rollouts(answers),
            costs=_costs(answers),
            groups=_groups(answers.map(lambda each: each.group)),
        )

    @changing("DELETE", ONE, "Drain and delete a group with its instances.")
    async def delete(self, call: Call) -> web.Response:
        name = call.path["group"]

        async def work(client: Client) -> Any:
            return await groups.delete(client, name, dry_run=call.is_dry_run, expected=call.expected_etag)

        answers = await self._shards.change(call, work)
        return changed(call, answers, plan=_actions(answers))

    @changing("POST", f"{ONE}/pause", "Pause a group: nothing is created, replaced or deleted.")
    @changing("POST", "/v1/pause", "Pause all groups of the tenant.")
    async def pause(self, call: Call) -> web.Response:
        return await self._pause(call, "PauseGroup")

    @changing("POST", f"{ONE}/resume", "Resume a group after a pause.")
    @changing("POST", "/v1/resume", "Resume all groups of the tenant.")
    async def resume(self, call: Call) -> web.Response:
        return await self._pause(call, "ResumeGroup")

    async def _pause(self, call: Call, rpc: str) -> web.Response:
        name = call.path.get("group", "")

        async def work(client: Client) -> Any:
            if name:
                await groups.find_unchanged(client, name, call.expected_etag)
            return await client.call(rpc, key=name, dry_run=call.is_dry_run)

        answers = await self._shards.change(call, work)
        return changed(
            call,
            answers,
            plan=_actions(answers.map(lambda each: each.plan)),
            groups=_groups(answers.map(lambda each: each.groups).flatten()),
        )

    @changing("POST", f"{ONE}/rollback", "Return a group to an earlier revision.", body=REVISION)
    async def roll_back(self, call: Call) -> web.Response:
        return await self._steer(call, "RollbackGroup", revision=call.body.get("revision", ""))

    @changing("POST", f"{ONE}/resume-rollout", "Continue a paused or halted rollout.")
    async def resume_rollout(self, call: Call) -> web.Response:
        return await self._steer(call, "ResumeRollout")

    async def _steer(self, call: Call, rpc: str, **more: str) -> web.Response:
        name = call.path["group"]

        async def work(client: Client) -> Any:
            await groups.find_unchanged(client, name, call.expected_etag)
            return await client.call(rpc, key=name, dry_run=call.is_dry_run, **more)

        return await self._upsert(call, work)


def changed(call: Call, answers: fanout.Answers[Any], **parts: Iterable[Record]) -> web.Response:
    """The answer to a change, or to its dry run."""
    names = ("plan", "rollouts", "costs", "groups", "instances")
    found: dict[str, Any] = {name: list(parts.get(name, ())) for name in names}
    paused = any(group["paused"] for group in found["groups"])
    return answer(call, {"dry_run": call.is_dry_run, "paused": paused, **found, "warnings": []}, answers)


def _change(call: Call) -> GroupChange:
    settings = {name: value for name, value in call.body.items() if name != "group"}
    args = settings.pop("args", None)
    vars = settings.pop("vars", {})
    change = GroupChange(vars=vars, args=json.dumps(args) if args is not None else None, **settings)
    for name in change.unset:
        if name in settings:
            raise ProblemError(400, f"expected either {name} or unset_{name}")
    return change


def _groups(answers: fanout.Answers[Any]) -> list[Record]:
    return [records.group_with_hashes(shard, status) for shard, status in answers.results]


def _actions(answers: fanout.Answers[Any]) -> list[Record]:
    return [each for shard, planned in answers.results for each in records.actions(shard, planned)]


def _rollouts(answers: fanout.Answers[Any]) -> list[Record]:
    return [
        records.ROLLOUT_PLAN.fill(each.rollout, shard=shard)
        for shard, each in answers.results
        if each.HasField("rollout")
    ]


def _costs(answers: fanout.Answers[Any]) -> list[Record]:
    return [COST_PLAN.fill(each.cost, shard=shard) for shard, each in answers.results if each.HasField("cost")]
