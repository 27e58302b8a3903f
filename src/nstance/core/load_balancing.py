"""Which instances belong to a load balancer, and which calls bring it there.

Desired members are compared with known ones, so a lost or reordered call is repaired the next time. An instance is
registered when it is ready and deregistered when it leaves `running`; in between nothing moves it, not even a check that
fails for a while. Members without a record are not touched: they belong to another shard or to somebody else.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from nstance.model.group import Group
from nstance.model.ids import GroupKey, InstanceId, ProviderId
from nstance.model.instance import ENDED, Instance, State


@dataclass(frozen=True, slots=True)
class Plan:
    register: tuple[ProviderId, ...] = ()
    deregister: tuple[ProviderId, ...] = ()


def plan(
    balancer: str,
    instances: Iterable[Instance],
    *,
    desired_groups: Mapping[GroupKey, Group],
    ready: Container[InstanceId],
    member: Callable[[ProviderId], bool | None],
) -> Plan:
    """`ready`: the instances that were reported ready in this term. `member`: whether a VM is a member, None if not known.
    Instances whose group does not use the balancer are deregistered only if they are known members."""
    register, deregister = [], []
    for instance in instances:
        if instance.provider_id is None:
            continue
        wanted = belongs(instance, balancer, desired_groups, ready)
        known = member(instance.provider_id)
        if wanted is True and known is not True:
            register.append(instance.provider_id)
        elif wanted is False and (
            known is True or (known is None and _may_be_member(instance, balancer, desired_groups))
        ):
            deregister.append(instance.provider_id)
    return Plan(tuple(register), tuple(deregister))


def uses(instance: Instance, balancer: str, desired_groups: Mapping[GroupKey, Group]) -> bool:
    desired = desired_groups.get(instance.key)
    return desired is not None and balancer in desired.load_balancers


def _may_be_member(instance: Instance, balancer: str, desired_groups: Mapping[GroupKey, Group]) -> bool:
    return uses(instance, balancer, desired_groups) and instance.state not in ENDED


def belongs(
    instance: Instance, balancer: str, desired_groups: Mapping[GroupKey, Group], ready: Container[InstanceId]
) -> bool | None:
    """Whether it should be a member; None: it stays what it is."""
    match instance.state:
        case State.PENDING | State.STARTING:
            return None
        case State.RUNNING if uses(instance, balancer, desired_groups):
            # A member stays one while its agent reconnects to a new leader, or while it is not ready for a time.
            return True if instance.id in ready else None
        case State.RUNNING | State.DRAINING | State.DELETING | State.DELETED | State.FAILED:
            return False
