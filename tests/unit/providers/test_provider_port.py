"""Capabilities are found by what a provider implements, and errors carry what a cloud says."""

import copy

from nstance.providers import errors, port


class OnlyImages:
    async def find_image(self, query: port.ImageQuery) -> str:
        return "img"


def test_a_capability_is_there_only_if_all_its_methods_are() -> None:
    class HalfBalancer(OnlyImages):
        async def register_target(self, balancer: object, provider_id: str) -> None: ...

    provider = HalfBalancer()
    can = port.capabilities_of(provider)  # type: ignore[arg-type]
    assert can.images is provider
    assert (can.load_balancers, can.leader_address, can.subnet_capacity, can.console) == (None, None, None, None)


def test_errors_keep_their_details_when_they_are_copied() -> None:
    capacity = copy.copy(
        errors.NoCapacityError("no m7g.large", scope=errors.CapacityScope.INSTANCE_TYPE, subject="m7g.large")
    )
    assert (str(capacity), capacity.scope, capacity.subject) == (
        "no m7g.large",
        errors.CapacityScope.INSTANCE_TYPE,
        "m7g.large",
    )
    denied = copy.copy(errors.PermanentError("denied", permission="ec2:RunInstances"))
    assert (denied.permission, denied.parameter) == ("ec2:RunInstances", "")
    assert copy.copy(errors.ThrottledError("slow down", delay=7.0)).delay == 7.0
