"""Members of a load balancer as JSON, in files and in answers of webhooks."""

import json
from collections.abc import Mapping
from typing import Any

from nstance.model.ids import ProviderId
from nstance.model.instance import Instance
from nstance.providers import errors
from nstance.providers.port import LoadBalancer

MAX_LIST_BYTES = 8 * 1024 * 1024


def to_entry(balancer: LoadBalancer, instance: Instance) -> dict[str, object]:
    entry: dict[str, object] = {
        "provider_id": instance.provider_id,
        "instance": instance.id,
        "tenant": instance.tenant,
        "group": instance.group,
        "ip4": instance.ip4,
        "ip6": instance.ip6,
        "hostname": instance.hostname,
    }
    return {**entry, "port": balancer.port} if balancer.port else entry


def parse(text: bytes, source: str) -> dict[ProviderId, dict[str, Any]]:
    """Members by provider ID. Raises UnavailableError for anything else: an unreadable list is not an empty one."""
    expected = f'expected {{"members": [{{"provider_id": …}}]}} from {source}'
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise errors.UnavailableError(f"{expected}, found no JSON: {problem}") from problem
    entries = found.get("members") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise errors.UnavailableError(f"{expected}, found no list of members")
    out: dict[ProviderId, dict[str, Any]] = {}
    for entry in entries:
        id = entry.get("provider_id") if isinstance(entry, dict) else None
        if not isinstance(id, str) or not id:
            raise errors.UnavailableError(f"{expected}, found a member without provider_id")
        out[ProviderId(id)] = entry
    return out


def render(entries: Mapping[ProviderId, Mapping[str, object]]) -> bytes:
    members = [entries[id] for id in sorted(entries)]
    return (json.dumps({"members": members}, indent=2, ensure_ascii=False) + "\n").encode()
