"""All that a leading server works with during one term, and how a new configuration reaches each part of it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from nstance.config import resolve as resolving
from nstance.config.resolve import Resolved
from nstance.model import ids
from nstance.model.decision import ReasonCode
from nstance.model.group import Group
from nstance.model.ids import GroupKey, InstanceId, ShardId
from nstance.model.instance import Instance
from nstance.providers.port import Capabilities, CreateRequest
from nstance.server.cache.cache import Cache
from nstance.server.cloud.images import Images
from nstance.server.cloud.load_balancers import LoadBalancers
from nstance.server.cloud.subnets import Subnets
from nstance.server.config import group_changes
from nstance.server.config.configuration import Configuration
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.revision_store import RevisionStore
from nstance.server.leader.step_times import StepTimes
from nstance.server.liveness.connected_agents import ConnectedAgents
from nstance.server.liveness.readiness import Readiness
from nstance.server.state.shard import Shard
from nstance.server.workload import http_fetch, rendering
from nstance.server.workload.file_sets import FileSets
from nstance.server.workload.rendering import NotFetchedError, RenderContext, RenderError
from nstance.server.workload.userdata import Userdata
from nstance.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

MAX_CONSOLE = 2048  # bytes that are told of a failed VM's console
MAX_LACKING = 1000
HELD_GROUP = (
    "group held, nothing is created or deleted: it was set through the API, and groups.jsonc does not have it; "
    "configure it again, or delete it by name"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    """Where agents and operators find the shard's servers."""

    registration: str
    agent: str
    operator: str
    hosts: frozenset[str]  # of this server: nobody else may claim them


@dataclass(frozen=True, slots=True)
class _Blocker:
    """Why a group's instances cannot be made now."""

    message: str
    failed: bool  # somebody was asked, and it was not to be had


@dataclass(frozen=True, slots=True)
class Console:
    """What the newest failed VM of a group wrote."""

    instance: InstanceId
    text: str


class TermContext:
    shard: Shard
    agents: ConnectedAgents
    balancers: LoadBalancers
    readiness: Readiness
    revisions: RevisionStore
    step_times: StepTimes

    def __init__(
        self,
        *,
        name: ShardId,
        configuration: Configuration,
        issuer: Issuer,
        file_sets: FileSets,
        metrics: Metrics,
        advertised: Advertised,
        images: Images,
        subnets: Subnets,
        userdata: Userdata,
        capabilities: Capabilities,
        cache: Cache | None = None,
    ) -> None:
        self.name = name
        self.configuration = configuration
        self.issuer = issuer
        self.file_sets = file_sets
        self.metrics = metrics
        self.advertised = advertised
        self.on_configured: list[Callable[[], None]] = []  # told after a new configuration is in force
        self.images = images
        self.subnets = subnets
        self.userdata = userdata
        self.consoles: dict[GroupKey, Console] = {}
        self.cache = cache
        self._capabilities = capabilities
        self._lacking: set[tuple[GroupKey, str]] = set()  # what was said to be missing
        self._held: frozenset[GroupKey] = frozenset()  # groups that were said to be held
        self._announced: dict[GroupKey, str] = {}  # why groups are blocked, as far as it was told
        self._ask_for_supplies()
        self.around = self._surroundings()

    @property
    def agent_ttl(self) -> float:
        return self.configuration.settings.shard.identity.agent_ttl

    @property
    def server_addresses(self) -> frozenset[str]:
        return self.advertised.hosts

    def _surroundings(self) -> RenderContext:
        settings = self.configuration.settings
        return RenderContext(
            settings=settings,
            shard=self.name,
            ca_bundle=self.issuer.authority.bundle,
            registration_addr=self.advertised.registration,
            agent_addr=self.advertised.agent,
            operator_addr=self.advertised.operator,
            images=self.images.values(),
        )

    def _ask_for_supplies(self) -> None:
        settings = self.configuration.settings
        self.images.configure(settings.images, kind=settings.shard.infra.provider)
        self.subnets.configure(resolved.group for resolved in self.configuration.groups.values())
        specs = (
            [resolved.userdata for resolved in self.configuration.groups.values()]
            if self._capabilities.userdata
            else []
        )
        self.userdata.configure(
            dict.fromkeys(spec.content for spec in specs if spec is not None and spec.source == "url"),
            private_hosts=settings.shard.userdata_hosts,
        )

    def balancer_names(self) -> list[str]:
        """Of those that the shard's provider can be asked for."""
        if not self._capabilities.load_balancers:
            return []
        settings = self.configuration.settings
        kind = settings.shard.infra.provider
        return [name for name, balancer in settings.load_balancers.items() if balancer.provider == kind]

    def desired_groups(self) -> dict[GroupKey, Group]:
        return {key: resolved.group for key, resolved in self.configuration.groups.items()}

    def blocked(self) -> dict[GroupKey, str]:
        """Groups whose instances cannot be made now, and why."""
        lacks = ((key, self._lack(resolved)) for key, resolved in self.configuration.groups.items())
        return {key: lack.message for key, lack in lacks if lack is not None}

    def told_blocked(self, key: GroupKey) -> str:
        """Why no instance of the group can be made, if somebody was asked for what it lacks and has refused."""
        return self._announced.get(key, "")

    def _lack(self, resolved: Resolved) -> _Blocker | None:
        texts = list(rendering.texts(resolved.args))
        spec = resolved.userdata if self._capabilities.userdata else None
        if spec is not None and spec.source == "url":
            body, place = self.userdata.text(spec.content), http_fetch.without_secrets(spec.content)
            if body is None:
                why = self.userdata.problem(spec.content)
                told = f"userdata cannot be fetched from {place}: {why}" if why else f"userdata is fetched from {place}"
                return _Blocker(told, failed=bool(why))
            texts.append(body.decode())
        elif spec is not None:
            texts.append(spec.content)
        for name in rendering.unknown_images(texts, self.around.images):
            why = self.images.problem(name)
            told = f"the image {name} cannot be found: {why}" if why else f"the image {name} is being looked up"
            return _Blocker(told, failed=bool(why))
        return None

    def supplied(self) -> None:
        """An image or userdata is new, or why there is none."""
        self.around = self._surroundings()
        self._block()

    def _block(self) -> None:
        before, self.shard.blocked = self.shard.blocked, self.blocked()
        now = self.shard.blocked
        self.shard.look_again([key for key in {**before, **now} if before.get(key) != now.get(key)])
        groups = self.configuration.groups
        for key in [key for key in self._announced if key not in now]:
            del self._announced[key]
            if key in groups:
                self.shard.notes.tell(
                    key, ReasonCode.RECOVERED, "what its instances are made of is there: they can be made again"
                )
        for key, why in now.items():
            lack = self._lack(groups[key])
            if lack is not None and lack.failed and self._announced.get(key) != why:
                self._announced[key] = why
                self.shard.notes.tell(key, ReasonCode.BLOCKED, f"no instance can be made: {why}")

    def announce_held(self) -> None:
        """Tell of groups that are held, once each."""
        held = self.shard.held_groups()
        for key in held:
            if key not in self._held:
                self.shard.notes.tell(key, ReasonCode.BLOCKED, HELD_GROUP)
        self._held = frozenset(held)

    def configure(self, configuration: Configuration) -> None:
        """Everything follows a new configuration: wishes, timings, files."""
        before, around, self.configuration = self.configuration, self.around, configuration
        self._ask_for_supplies()
        self.around = self._surroundings()
        self.shard.groups_lost = configuration.dynamic_version is None
        self.shard.configure(self.desired_groups(), configuration.policy)
        self.announce_held()
        self._block()
        self.balancers.configure(self.balancer_names())
        self.consoles = {key: console for key, console in self.consoles.items() if key in configuration.groups}
        concerned = self._concerned(before, around)
        self.agents.nudge(concerned)
        self.agents.ask_keys(concerned)
        for tell in self.on_configured:
            tell()

    def reloaded(self, before: Configuration, after: Configuration) -> None:
        """The configuration was read again: the history names what changed in groups."""
        author = "the configuration file" if after.version != before.version else "an edit of groups.jsonc"
        for key, what in group_changes.changes(before, after, lambda key: author):
            self.shard.notes.tell(key, ReasonCode.CONFIG, what)

    def _concerned(self, before: Configuration, around: RenderContext) -> list[InstanceId] | None:
        """Whose keys or files may be others since that configuration; None: everybody's. To wake an agent costs more than
        to compare its group, and most changes are of one group among hundreds."""
        if rendering.shared(around) != rendering.shared(self.around):
            return None
        groups = self.configuration.groups
        return [
            id
            for key, old in before.groups.items()
            if (new := groups.get(key)) is not old and _files_of(old) != _files_of(new)
            for id in self.shard.members(key)
        ] + [id for key in groups if key not in before.groups for id in self.shard.members(key)]

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
        except RenderError as problem:
            # Told when the provider would be asked: the record then ends with this reason.
            log.warning("an instance cannot be rendered", extra={"instance": instance.id, "error": str(problem)})
            return instance

    def request(self, instance: Instance) -> CreateRequest:
        found = self.resolved(instance)
        if found is None:
            raise RenderError(f"the group {instance.key} is no longer configured")
        if ids.kind_of(instance.id) != found.group.kind:
            raise RenderError(f"the group's kind is now {found.group.kind}")
        return rendering.request(
            self.around,
            found,
            instance,
            nonce=self.issuer.token(instance),
            userdata=self._template_of(found),
            on_missing=lambda path: self.lacks(instance.key, path),
        )

    def lacks(self, key: GroupKey, path: str) -> None:
        """A template of the group prints what nobody has set. Said once."""
        if (key, path) not in self._lacking and len(self._lacking) < MAX_LACKING:
            self._lacking.add((key, path))
            message = f"a template prints {path}, which nobody has set: it is rendered empty"
            log.warning(message, extra={"group": str(key)})
            self.shard.notes.tell(key, ReasonCode.CONFIG, message)

    def _template_of(self, resolved: Resolved) -> bytes | None:
        spec = resolved.userdata
        if spec is None or not self._capabilities.userdata:
            return None
        if spec.source == "inline":
            return spec.content.encode()
        fetched = self.userdata.text(spec.content)
        if fetched is None:
            raise NotFetchedError(f"userdata was not fetched yet from {http_fetch.without_secrets(spec.content)}")
        return fetched

    def said(self, instance: Instance, output: str) -> None:
        """The console of a VM whose agent never registered."""
        if instance.nonce is not None:
            output = output.replace(self.issuer.token(instance), "[nonce]")
        text = "".join(c for c in output if c.isprintable() or c in "\n\t").strip()
        text = text.encode("utf-8", "replace")[-MAX_CONSOLE:].decode("utf-8", "ignore")
        self.consoles[instance.key] = Console(instance.id, text)
        self.shard.notes.tell(instance.key, ReasonCode.UNREGISTERED, f"its console said last:\n{text}", instance.id)

    def registered(self, instance: Instance) -> None:
        if instance.registered is not None:
            self.metrics.registered(instance.key, instance.registered - instance.created)


def _files_of(resolved: Resolved | None) -> str | None:
    """What the files of a group's instances are made of; None: it has none."""
    return resolved.group.runtime_hash if resolved is not None else None
