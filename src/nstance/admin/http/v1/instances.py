"""Instances and unknown VMs."""

from typing import Any

from aiohttp import web

from nstance.admin.client import Client
from nstance.admin.http.v1 import fields, schemas
from nstance.admin.http.v1.fields import Fields, field
from nstance.admin.http.v1.groups import changed
from nstance.admin.http.v1.replies import Shards, answer
from nstance.admin.http.v1.routing import SHARD, Call, RouteGroup, changing, route
from nstance.admin.shard import fanout, groups, instances, records, unknown_vms
from nstance.model.roles import Role

DEFAULT_PAGE = 100
ONE = "/v1/instances/{instance}"
FILTERS: Fields = {
    **SHARD,
    "group": field(fields.NAME, "Only of this group."),
    "deleted": field(fields.FLAG, "Include recently deleted or failed ones."),
    "limit": field(fields.PAGE_SIZE, "At most so many."),
    "cursor": field(fields.CURSOR, "The value of `next` of the page before."),
}
NEW: Fields = {
    "group": field(fields.NAME, "The group whose template it uses.", required=True),
    "instance_type": field(fields.TEXT, "The provider's name; default: the group's."),
    "vars": field(fields.VARS, "Vars for the templates."),
    "uuid": field(fields.TEXT, "A UUIDv7: repeating the call with it creates no second instance."),
}


class Instances(RouteGroup):
    tag = "instances"

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    @route(
        "GET",
        "/v1/instances",
        "Instances with their states, sorted by shard and ID, page by page.",
        query=FILTERS,
        reply=schemas.listed("instances", "ListedInstance", next=True),
    )
    async def list(self, call: Call) -> web.Response:
        """Shard by shard: the cursor names the shard, and the last instance of it that was sent."""
        limit = call.query.get("limit", DEFAULT_PAGE)
        start, _, after = call.query.get("cursor", "").partition("/")
        total: fanout.Answers[Any] = fanout.Answers()
        found: list[dict[str, Any]] = []
        cursor = ""
        for client in sorted(self._shards.of(call), key=lambda each: each.shard):
            if client.shard < start:
                continue
            if len(found) == limit:
                cursor = str(client.shard)
                break
            page = await fanout.call_each([client], _page(call, limit - len(found), after))
            after = ""
            total.results += page.results
            total.failures += page.failures
            for shard, listed in page.results:
                found += [records.instance(shard, status) for status in listed.instances]
                if listed.more:
                    cursor = f"{shard}/{listed.instances[-1].instance_id}"
            if cursor:
                break
        total.ignore_not_found()
        return answer(call, {"instances": found, **({"next": cursor} if cursor else {})}, total)

    @route(
        "GET",
        ONE,
        "An instance with the last report of its agent.",
        query=SHARD,
        reply=schemas.listed("instances", "Instance"),
    )
    async def show(self, call: Call) -> web.Response:
        id = call.path["instance"]
        answers = await self._shards.ask(call, lambda client: client.call("GetInstanceStatus", instance_id=id))
        answers.ignore_not_found()
        found = [records.instance_with_report(shard, status) for shard, status in answers.results]
        return answer(call, {"instances": found}, answers)

    @route(
        "GET",
        "/v1/unknown-vms",
        "VMs with the shards' tags that have no record.",
        query=SHARD,
        reply=schemas.listed("unknown_vms", "UnknownVm"),
    )
    async def unknown(self, call: Call) -> web.Response:
        answers = await self._shards.ask(call, unknown_vms.list_unknown_vms)
        found = [unknown_vms.UNKNOWN_VM.fill(vm, shard=shard) for shard, vm in answers.flatten().results]
        return answer(call, {"unknown_vms": found}, answers)

    # ---- changing

    @changing("POST", "/v1/instances", "Create one on-demand instance.", body=NEW)
    async def create(self, call: Call) -> web.Response:
        async def work(client: Client) -> Any:
            await groups.find(client, call.body["group"])
            return await client.call(
                "CreateInstance",
                group=call.body["group"],
                uuid=call.body.get("uuid") or instances.new_uuid(),
                instance_type=call.body.get("instance_type", ""),
                vars=call.body.get("vars", {}),
                dry_run=call.is_dry_run,
            )

        return _changed(call, await self._shards.change(call, work))

    @changing("DELETE", ONE, "Drain and delete an instance.")
    async def delete(self, call: Call) -> web.Response:
        return await self._act(call, "DeleteInstance")

    @changing("POST", f"{ONE}/replace", "Create a replacement, then delete the instance.")
    async def replace(self, call: Call) -> web.Response:
        return await self._act(call, "ReplaceInstance")

    @changing("POST", f"{ONE}/adopt", "Create a record for an unknown VM.")
    async def adopt(self, call: Call) -> web.Response:
        return await self._act(call, "AdoptInstance")

    @changing("POST", f"{ONE}/release", "Delete an unknown VM.")
    async def release(self, call: Call) -> web.Response:
        answers = await self._call(call, "ReleaseInstance")
        return changed(call, answers, plan=_plan(answers))

    async def _act(self, call: Call, rpc: str) -> web.Response:
        return _changed(call, await self._call(call, rpc))

    async def _call(self, call: Call, rpc: str) -> fanout.Answers[Any]:
        id = call.path["instance"]
        answers = await self._shards.change(
            call, lambda client: client.call(rpc, instance_id=id, dry_run=call.is_dry_run)
        )
        return answers.ignore_not_found()

    @changing("POST", f"{ONE}/drained", "Acknowledge that an instance is drained.", role=Role.DRAINER)
    async def drained(self, call: Call) -> web.Response:
        id = call.path["instance"]
        answers = await self._shards.change(
            call, lambda client: instances.acknowledge_drained(client, id, dry_run=call.is_dry_run)
        )
        answers.ignore_not_found()
        plan = [
            records.ACTION.fill(instances.planned_deletion(status), shard=shard)
            for shard, status in answers.results
            if call.is_dry_run
        ]
        found = [records.instance(shard, status) for shard, status in answers.results]
        return changed(call, answers, plan=plan, instances=found)


def _page(call: Call, limit: int, after: str) -> Any:
    group, deleted = call.query.get("group", ""), call.query.get("deleted", False)
    return lambda client: client.call(
        "ListInstances", group=group, include_deleted=deleted, after_id=after, limit=limit
    )


def _changed(call: Call, answers: fanout.Answers[Any]) -> web.Response:
    found = [records.instance(shard, status) for shard, status in answers.results]
    return changed(call, answers, plan=_plan(answers), instances=found)


def _plan(answers: fanout.Answers[Any]) -> list[records.Record]:
    return [each for shard, status in answers.results for each in records.actions(shard, status.plan)]
