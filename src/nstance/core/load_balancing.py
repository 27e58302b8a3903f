"""Who belongs to a load balancer, and what to do about it.

Desired state against known members, so a lost or reordered call is repaired by the next look (F57). One-way for each
instance: it comes in when it is ready, and goes out when it leaves `running`; in between nothing moves it, also not a
check that fails for a while. Members that no record knows are left alone: they are another shard's, or somebody's own.
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
    """`ready`: who is ready, as far as was reported in this term. `member`: whether a VM is in, None if that is not
    known; of instances whose group does not use the balancer, only known members are touched."""
    register, deregister = [], []
    for instance in instances:
        if instance.provider_id is None:
            continue
        wanted = belongs(instance, balancer, desired_groups, ready)
        known = member(instance.provider_id)
        if wanted is True and known is not True:
            register.append(instance.provider_id)
        elif wanted is False and (known is True or (known is None and _may_be_in(instance, balancer, desired_groups))):
            deregister.append(instance.provider_id)
    return Plan(tuple(register), tuple(deregister))


def uses(instance: Instance, balancer: str, desired_groups: Mapping[GroupKey, Group]) -> bool:
    desired = desired_groups.get(instance.key)
    return desired is not None and balancer in desired.load_balancers


def _may_be_in(instance: Instance, balancer: str, desired_groups: Mapping[GroupKey, Group]) -> bool:
    return uses(instance, balancer, desired_groups) and instance.state not in ENDED


def belongs(
    instance: Instance, balancer: str, desired_groups: Mapping[GroupKey, Group], ready: Container[InstanceId]
) -> bool | None:
    """Whether it should be a member; None: whatever it is, it stays."""
    match instance.state:
        case State.PENDING | State.STARTING:
            return None
        case State.RUNNING if uses(instance, balancer, desired_groups):
            # A member stays one while its agent has not come back to a new leader, or while it is not ready again.
            return True if instance.id in ready else None
        case _:
            return False
