"""Google Cloud: Compute Engine instances, instance groups, images, subnets, and the leader address where one is configured."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nstance.clock import Clock
from nstance.gcp.client import GoogleClient
from nstance.gcp.endpoints import COMPUTE
from nstance.providers import errors
from nstance.providers.gcp.compute import Compute
from nstance.providers.gcp.images import MachineImages
from nstance.providers.gcp.instances import ComputeInstances
from nstance.providers.gcp.leader_address import AliasAddress
from nstance.providers.gcp.load_balancers import InstanceGroups
from nstance.providers.gcp.preflight import LaunchChecks
from nstance.providers.gcp.subnets import Subnets
from nstance.providers.port import CloudPlan, Fault, FixedAddress, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpSettings:
    zone: str
    project: str = ""  # empty: that of the credentials
    endpoint: str = ""


class GcpProvider(ComputeInstances, InstanceGroups, MachineImages, Subnets):
    _fixed_address: FixedAddress | None = None

    def __init__(self, scope: Scope, compute: Compute) -> None:
        ComputeInstances.__init__(self, scope, compute)

    def on_alarm(self, report: Callable[[str], None]) -> None:
        """`providers.port.Alarms`."""
        self._compute.client.on_credentials_failure = report

    async def preflight(self, plan: CloudPlan) -> Sequence[Fault]:
        """`providers.port.Preflight`."""
        return await LaunchChecks(self._compute, self._fixed_address).run(plan)


class GcpProviderWithAddress(GcpProvider, AliasAddress):
    def __init__(self, scope: Scope, compute: Compute, address: FixedAddress) -> None:
        GcpProvider.__init__(self, scope, compute)
        AliasAddress.__init__(self, compute, address)
        self._fixed_address = address


def open_gcp(
    scope: Scope,
    settings: GcpSettings,
    address: FixedAddress | None,
    *,
    clock: Clock,
    environment: Mapping[str, str] | None = None,
) -> GcpProvider:
    """Raises PermanentError."""
    if settings.zone.count("-") < 2:
        raise errors.PermanentError(
            f"shard.infra.zone: expected a zone of Google such as europe-west1-b, found {settings.zone!r}"
        )
    variables = dict(os.environ if environment is None else environment)
    if settings.endpoint:
        variables[COMPUTE.variable] = settings.endpoint
    client = GoogleClient(clock=clock, environment=variables)
    compute = Compute(client, clock, project=settings.project, zone=settings.zone)
    if address is None:
        return GcpProvider(scope, compute)
    return GcpProviderWithAddress(scope, compute, address)
