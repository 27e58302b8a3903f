"""The status of a pool, added up from its shards. Pure."""

from collections.abc import Callable, Sequence

from nstance.kube import kinds
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.controllers.machine_objects import ENDED, addresses
from nstance.operator.controllers.pool_limits import Limit
from nstance.operator.controllers.resources import Condition
from nstance.operator.shards.ports import Shards
from nstance.v1 import operator_pb2 as pb

LIMIT_REACHED = "LimitReached"
IN_SYNC = "InSync"
MAX_SHOWN_INSTANCES = 100  # in the status of a pool


def is_pool_member(event: pb.InstanceEvent, group: str) -> bool:
    return event.group == group and not event.on_demand and event.state not in ENDED


def summarize(
    pool: Object,
    machine_pool: Object | None,
    groups: Sequence[Object],
    *,
    problem: str = "",
    limit: Limit | None = None,
) -> tuple[Object, Condition]:
    """The pool's status (without conditions) and its Ready condition. `problem`: why the spec was not applied.
    `limit`: beyond which it does not grow."""
    statuses = [resources.status(each) for each in groups]
    replicas = sum(status.get("replicas", 0) for status in statuses)
    ready = sum(status.get("readyReplicas", 0) for status in statuses)
    unreachable = [
        resources.spec(each)["shard"]
        for each in groups
        if resources.condition(each, "ShardReachable").get("status") != "True"
    ]
    # Cluster API reads this once, to go on; it must not become false again. For pools it reads `ready` instead, and
    # follows neither replicas nor nodes while that is false. Whether all replicas are ready is in the condition.
    was_provisioned = bool(resources.status(pool).get("initialization", {}).get("provisioned"))
    is_provisioned = was_provisioned or (machine_pool is not None and bool(groups) and not unreachable and not problem)
    status: Object = {
        "replicas": replicas,
        "readyReplicas": ready,
        "isStatic": any(each.get("isStatic", False) for each in statuses),
        "observedGeneration": resources.generation(pool),
        "ready": is_provisioned,
        "infrastructureMachineKind": kinds.NSTANCE_MACHINE.name,
    }
    if is_provisioned:
        status["initialization"] = {"provisioned": True}
    wanted = resources.spec(machine_pool or {}).get("replicas") or 0
    if machine_pool is None:
        reason, message = "NoMachinePool", "no MachinePool has this pool as its infrastructureRef"
    elif problem:
        reason, message = "ConfigInvalid", problem
    elif rejected := _by_shard(groups, "ConfigValid", lambda each: each["status"] == "False"):
        reason, message = "ConfigInvalid", rejected
    elif unreachable:
        reason, message = "ShardUnreachable", f"not reachable: {', '.join(unreachable)}"
    elif blocked := _by_shard(groups, "Ready", lambda each: each["reason"] == "Blocked"):
        reason, message = "Blocked", blocked
    elif limit is not None and limit.reason and replicas < wanted > limit.instances and ready >= limit.instances:
        reason, message = LIMIT_REACHED, f"{ready} ready; {wanted} wanted, {limit.reason}"
    elif not groups or replicas != wanted or ready < wanted:
        reason = "NotReady" if replicas == wanted else "Scaling"
        message = f"{ready} of {wanted} ready, {replicas} exist"
    else:
        return status, Condition("Ready", True, "AllReady", f"{ready} of {wanted} ready")
    return status, Condition("Ready", False, reason, message)


def sync_conditions(groups: Sequence[Object]) -> list[Condition]:
    """What shards have and the pool does not name; none before a shard said it."""
    if not any(resources.condition(each, IN_SYNC) for each in groups):
        return []
    if unnamed := _by_shard(groups, IN_SYNC, lambda each: each["status"] == "False"):
        return [Condition(IN_SYNC, False, "SetAtShard", unnamed)]
    return [Condition(IN_SYNC, True, "Synced")]


def _by_shard(groups: Sequence[Object], type: str, matches: Callable[[Object], bool]) -> str:
    """The messages of matching conditions, each with its shard."""
    found = ((resources.spec(each)["shard"], resources.condition(each, type)) for each in groups)
    texts = ((shard, each.get("message") or each["reason"]) for shard, each in found if each and matches(each))
    return "; ".join(f"{shard}: {text}" for shard, text in texts)


def node_fields(pool: Object, shards: Shards) -> Object:
    """What cluster-autoscaler reads of a pool without nodes: capacity and nodeInfo, as the first shard that knows them
    tells. Empty while no shard was reached: then the status keeps what it has."""
    spec = resources.spec(pool)
    for shard in (shards.get(name) for name in spec.get("shards") or ()):
        group = shard.groups.get(spec.get("group", "")) if shard is not None else None
        if group is not None and (group.capacity or group.architecture):
            info = {"architecture": group.architecture, "operatingSystem": group.operating_system}
            return {"capacity": dict(group.capacity), "nodeInfo": {key: each for key, each in info.items() if each}}
    return {}


def shown_instances(pool: Object, shards: Shards) -> list[Object]:
    spec = resources.spec(pool)
    found = []
    for name in dict.fromkeys(spec.get("shards") or ()):
        shard = shards.get(name)
        for event in shard.instances.values() if shard is not None else ():
            if is_pool_member(event, spec.get("group", "")):
                shown = {"instanceName": event.instance_id, "shard": name, "state": event.state, "ready": event.ready}
                optional = {"providerID": event.provider_id, "addresses": addresses(event)}
                found.append(shown | {key: value for key, value in optional.items() if value})
    return sorted(found, key=lambda each: str(each["instanceName"]))[:MAX_SHOWN_INSTANCES]
