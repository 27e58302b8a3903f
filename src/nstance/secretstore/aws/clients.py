"""Clients of AWS for secrets and keys, one per region, opened when they are first needed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nstance.clock import Clock, Rng
from nstance.secretstore import errors

if TYPE_CHECKING:
    from nstance.aws.client import AwsClient

_REGION_PART = 3  # of arn:partition:service:region:account:…


class AwsClients:
    def __init__(self, *, region: str, clock: Clock, rng: Rng, environment: Mapping[str, str]) -> None:
        """`region` is the configured one; without it the usual variables apply."""
        self.clock = clock
        self.rng = rng
        self._region = region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""
        self._environment = environment
        self._open: dict[str, AwsClient] = {}

    def client(self, name: str = "") -> "AwsClient":
        """For a secret or key by its name; an ARN names its own region. Raises PermanentError."""
        region = name.split(":")[_REGION_PART] if name.startswith("arn:") and name.count(":") > _REGION_PART else ""
        region = region or self._region
        if not region:
            raise errors.PermanentError("no AWS region for secrets: set cluster.secrets.region or AWS_REGION")
        if region not in self._open:
            from nstance.aws.client import AwsClient  # most servers need no secret of AWS

            self._open[region] = AwsClient(region=region, clock=self.clock, environment=self._environment)
        return self._open[region]

    async def close(self) -> None:
        for client in self._open.values():
            await client.close()
        self._open.clear()
