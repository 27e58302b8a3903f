"""AWS: EC2 instances, target groups, images, subnets, and the leader address where the configuration names one."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nstance.aws.client import AwsClient
from nstance.clock import Clock
from nstance.providers import errors
from nstance.providers.aws.images import MachineImages
from nstance.providers.aws.instances import Ec2Instances
from nstance.providers.aws.launch_budget import BURST_LAUNCHES, LAUNCHES_PER_SECOND, LaunchBudget
from nstance.providers.aws.leader_address import MovingAddress
from nstance.providers.aws.load_balancers import TargetGroups
from nstance.providers.aws.preflight import LaunchChecks
from nstance.providers.aws.subnets import Subnets
from nstance.providers.port import CloudPlan, Fault, FixedAddress, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    region: str
    endpoint: str = ""
    profile: str = ""
    role_arn: str = ""
    launch_burst: float = BURST_LAUNCHES
    launch_rate: float = LAUNCHES_PER_SECOND


class AwsProvider(Ec2Instances, TargetGroups, MachineImages, Subnets):
    _fixed_address: FixedAddress | None = None

    def __init__(self, scope: Scope, client: AwsClient, clock: Clock, settings: AwsSettings) -> None:
        budget = LaunchBudget(clock, burst=settings.launch_burst, rate=settings.launch_rate)
        Ec2Instances.__init__(self, scope, client, clock, budget)

    def on_alarm(self, report: Callable[[str], None]) -> None:
        """`providers.port.Alarms`."""
        self._client.on_credentials_failure = report

    async def preflight(self, plan: CloudPlan) -> Sequence[Fault]:
        """`providers.port.Preflight`."""
        return await LaunchChecks(self._scope, self._client, self._fixed_address).run(plan)


class AwsProviderWithAddress(AwsProvider, MovingAddress):
    def __init__(
        self, scope: Scope, client: AwsClient, clock: Clock, settings: AwsSettings, address: FixedAddress
    ) -> None:
        AwsProvider.__init__(self, scope, client, clock, settings)
        MovingAddress.__init__(self, client, clock, address)
        self._fixed_address = address


def open_aws(
    scope: Scope,
    settings: AwsSettings,
    address: FixedAddress | None,
    *,
    clock: Clock,
    server: str,
    environment: Mapping[str, str] | None = None,
) -> AwsProvider:
    """Raises PermanentError."""
    found = os.environ if environment is None else environment
    region = settings.region or found.get("AWS_REGION") or found.get("AWS_DEFAULT_REGION") or ""
    if not region:
        raise errors.PermanentError("shard.infra.region: expected a region of AWS such as eu-west-1, found none")
    client = AwsClient(
        region=region,
        clock=clock,
        endpoint_url=settings.endpoint,
        server=server,
        environment=_with_profile(found, settings.profile) if settings.profile else found,
        role_arn=settings.role_arn,
    )
    if address is None:
        return AwsProvider(scope, client, clock, settings)
    return AwsProviderWithAddress(scope, client, clock, settings, address)


def _with_profile(environment: Mapping[str, str], profile: str) -> Mapping[str, str]:
    """A profile that the configuration names wins over other credentials of the environment, as in AWS's tools."""
    kept = {name: value for name, value in environment.items() if name not in _CREDENTIALS}
    return {**kept, "AWS_PROFILE": profile}


_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE")
