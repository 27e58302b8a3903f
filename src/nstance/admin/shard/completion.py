"""Words for shell completion that only running shards know.

A shell waits for them while a person types: there is one short deadline, and a shard that does not answer in time is left
out without a word.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from nstance.admin.client import Client
from nstance.admin.event_loop import run
from nstance.admin.shard import fanout, groups, instances
from nstance.admin.shard_flags import ShardSelection
from nstance.model.ids import ShardId, TenantId

TIMEOUT_SECONDS = 1.0
MAX_WORDS = 500

Word = tuple[str, str]  # and what is said about it


def words(kind: str, incomplete: str, params: dict[str, Any]) -> list[Word]:
    """`params`: the flags as far as they are typed. Empty whatever goes wrong."""
    try:
        selection = _selection(params)
        if selection is None:
            return []
        answers = run(_ask(selection, _LISTS[kind]))
    except Exception:
        return []
    found = dict(word for _, listed in answers.results for word in listed if word[0].startswith(incomplete))
    return sorted(found.items())[:MAX_WORDS]


def _selection(params: dict[str, Any]) -> ShardSelection | None:
    known = params.get("servers")
    identity = params.get("identity_dir")
    if not known or identity is None:
        return None
    chosen = params.get("shard")
    return ShardSelection(
        servers=known,
        shards=(ShardId(str(chosen)),) if chosen in known else tuple(sorted(known)),
        several=chosen is None,
        identity=identity,
        timeout=TIMEOUT_SECONDS,
        tenant=TenantId(tenant) if (tenant := params.get("tenant")) else None,
    )


async def _ask(
    selection: ShardSelection, work: Callable[[Client], Awaitable[Iterable[Word]]]
) -> fanout.Answers[Iterable[Word]]:
    async with fanout.open_clients(selection) as clients:
        return await fanout.call_each(clients, work)


async def _groups(client: Client) -> list[Word]:
    return [(each.key, f"{each.ready_size} of {each.size} ready") for each in await groups.list_groups(client)]


async def _instances(client: Client) -> list[Word]:
    return [(each.instance_id, f"{each.group}, {each.state}") for each in await instances.list_instances(client)]


async def _templates(client: Client) -> list[Word]:
    found = dict.fromkeys((await client.call("GetConfigStatus")).templates, "")
    for each in await groups.list_groups(client):
        found.setdefault(each.template, "")
    return list(found.items())


async def _instance_types(client: Client) -> list[Word]:
    used = [
        name
        for each in await groups.list_groups(client)
        for name in (each.instance_type, each.file_instance_type, *each.instance_types)
    ]
    return [(name, "used by a group") for name in used if name]


_LISTS: dict[str, Callable[[Client], Awaitable[list[Word]]]] = {
    "group": _groups,
    "instance": _instances,
    "template": _templates,
    "instance-type": _instance_types,
}
