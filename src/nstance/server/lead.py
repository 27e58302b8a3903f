"""All that a leading server works with during one term, and how a new configuration reaches each part of it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from nstance.config import resolve as resolving
from nstance.config.resolve import Resolved
from nstance.model import ids
from nstance.model.group import Group
from nstance.model.ids import GroupKey, ShardId
from nstance.model.instance import Instance
from nstance.providers.port import CreateRequest
from nstance.server import rendering
from nstance.server.agents import Agents
from nstance.server.configuration import Configuration
from nstance.server.filesets import FileSets
from nstance.server.issuing import Issuer
from nstance.server.rendering import CannotRender, Surroundings
from nstance.server.shard import Shard
from nstance.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    """Where agents and operators find the shard's servers."""

    registration: str
    agent: str
    operator: str
    hosts: frozenset[str]  # of this server: nobody else may claim them


class Lead:
    shard: Shard
    agents: Agents

    def __init__(
        self,
        *,
        name: ShardId,
        configuration: Configuration,
        issuer: Issuer,
        file_sets: FileSets,
        metrics: Metrics,
        advertised: Advertised,
        uses_userdata: bool,
    ) -> None:
        self.name = name
        self.configuration = configuration
        self.issuer = issuer
        self.file_sets = file_sets
        self.metrics = metrics
        self.advertised = advertised
        self.on_configured: list[Callable[[], None]] = []  # told after a new configuration is in force
        self._uses_userdata = uses_userdata
        self.around = self._surroundings()

    @property
    def agent_ttl(self) -> float:
        return self.configuration.settings.shard.identity.agent_ttl

    @property
    def server_addresses(self) -> frozenset[str]:
        return self.advertised.hosts

    def _surroundings(self) -> Surroundings:
        settings = self.configuration.settings
        return Surroundings(
            settings=settings,
            shard=self.name,
            ca_bundle=self.issuer.authority.bundle,
            registration_addr=self.advertised.registration,
            agent_addr=self.advertised.agent,
            operator_addr=self.advertised.operator,
            images={name: image.fallback for name, image in settings.images.items()},
        )

    def wishes(self) -> dict[GroupKey, Group]:
        return {key: resolved.group for key, resolved in self.configuration.groups.items()}

    def blocked(self) -> dict[GroupKey, str]:
        """Groups whose instances cannot be made now, and why."""
        if not self._uses_userdata:
            return {}
        return {
            key: "userdata from a URL is not fetched by this version; use inline userdata"
            for key, resolved in self.configuration.groups.items()
            if resolved.userdata is not None and resolved.userdata.source == "url"
        }

    def configure(self, configuration: Configuration) -> None:
        """Everything follows a new configuration: wishes, timings, files."""
        self.configuration = configuration
        self.around = self._surroundings()
        self.shard.blocked = self.blocked()
        self.shard.configure(self.wishes(), configuration.policy)
        self.agents.nudge()
        self.agents.ask_keys()
        for tell in self.on_configured:
            tell()

    def resolved(self, instance: Instance) -> Resolved | None:
        """What the instance's group is now, with what an on-demand request asked for; None if it is no longer wished."""
        found = self.configuration.groups.get(instance.key)
        if found is None or not instance.on_demand:
            return found
        return resolving.on_demand(found, instance_type=instance.instance_type, vars=instance.vars)

    def prepare(self, instance: Instance) -> Instance:
        """Complete a new intent: the nonce's claims, and the hash of the request that they lead to."""
        found = self.resolved(instance)
        if found is None:
            return instance
        if instance.nonce is None:
            instance = replace(instance, nonce=self.issuer.new_nonce(found.group.registration_timeout))
        try:
            return replace(instance, request_hash=rendering.request_hash(self.request(instance)))
        except CannotRender as problem:
            # Told when the provider would be asked: the record then ends with this reason.
            log.warning("an instance cannot be rendered", extra={"instance": instance.id, "error": str(problem)})
            return instance

    def request(self, instance: Instance) -> CreateRequest:
        found = self.resolved(instance)
        if found is None:
            raise CannotRender(f"the group {instance.key} is no longer configured")
        if ids.kind_of(instance.id) != found.group.kind:
            raise CannotRender(f"the group's kind is now {found.group.kind}")
        spec = found.userdata
        userdata = (
            spec.content.encode() if self._uses_userdata and spec is not None and spec.source == "inline" else None
        )
        return rendering.request(self.around, found, instance, nonce=self.issuer.token(instance), userdata=userdata)

    def registered(self, instance: Instance) -> None:
        if instance.registered is not None:
            self.metrics.registered(instance.key, instance.registered - instance.created)
