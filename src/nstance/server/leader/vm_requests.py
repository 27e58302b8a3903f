"""The requests to the provider for new VMs, made from the active configuration."""

import logging
from dataclasses import dataclass, field, replace

from nstance.config import resolve as resolving
from nstance.config.resolve import Resolved
from nstance.core import rollout
from nstance.model import ids
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey
from nstance.model.instance import Instance
from nstance.providers.port import CreateRequest
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.config.advertised import Advertised
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.earlier_revisions import EarlierRevisions
from nstance.server.leader.supplies import Supplies
from nstance.server.state.shard_parts import ShardParts
from nstance.server.workload import http_fetch, rendering
from nstance.server.workload.rendering import NotFetchedError, RenderContext, RenderError

log = logging.getLogger(__name__)

MAX_MISSING_VARIABLES = 1000  # that are reported in a term


@dataclass(eq=False)
class VmRequests:
    """Of one shard during one term."""

    active_config: ActiveConfig
    earlier: EarlierRevisions
    supplies: Supplies
    issuer: Issuer
    parts: ShardParts
    advertised: Advertised
    _missing: set[tuple[GroupKey, str]] = field(default_factory=set)  # variables that were reported

    def __post_init__(self) -> None:
        self.context = self._make_context()
        self.supplies.subscribe(self.refresh)

    def refresh(self, change: ConfigChange | None = None) -> None:
        """The configuration, an image or userdata changed."""
        self.context = self._make_context()

    def _make_context(self) -> RenderContext:
        return RenderContext(
            settings=self.active_config.configuration.settings,
            shard=self.active_config.shard,
            ca_bundle=self.issuer.authority.bundle,
            registration_addr=self.advertised.registration,
            agent_addr=self.advertised.agent,
            operator_addr=self.advertised.operator,
            images=self.supplies.images.values(),
            agent_urls=self.supplies.agent.urls(),
        )

    def resolve(self, instance: Instance) -> Resolved | None:
        """The group of the instance as the revision that it was made from, with what an on-demand request asked for. None
        if the group is gone, or the revision is being read."""
        current = self._current(instance)
        found = self.earlier.resolve(current, instance.infra_hash) if current is not None else None
        return _add_request(found, instance) if found is not None else None

    def is_being_read(self, instance: Instance) -> bool:
        """Whether its revision is not known yet: then nothing can be said about its files and checks."""
        current = self._current(instance)
        return current is not None and self.earlier.resolve(current, instance.infra_hash) is None

    def _current(self, instance: Instance) -> Resolved | None:
        return self.active_config.configuration.groups.get(instance.key)

    def _to_create(self, instance: Instance) -> Resolved | None:
        """What its VM is made from. An intent of an earlier revision is carried out only if it is one on purpose."""
        current = self._current(instance)
        desired = current.group if current is not None else None
        if rollout.is_fallback(self.parts.state.group_records.get(instance.key), desired, instance):
            if self.is_being_read(instance):
                raise NotFetchedError("its revision was not read yet")
            return self.resolve(instance)
        return _add_request(current, instance) if current is not None else None

    def complete_intent(self, instance: Instance) -> Instance:
        """Add the nonce's claims to a new intent, and the hash of the request that they lead to."""
        found = self.resolve(instance)
        if found is None:
            return instance
        if instance.nonce is None:
            instance = replace(instance, nonce=self.issuer.new_nonce(found.group.registration_timeout))
        try:
            return replace(instance, request_hash=rendering.request_hash(self._make(instance, found)))
        except RenderError as problem:
            # The create effect fails with the same error, and the record then ends with this reason.
            log.warning("failed to render an instance", extra={"instance": instance.id, "error": str(problem)})
            return instance

    def make(self, instance: Instance) -> CreateRequest:
        """Raises RenderError."""
        found = self._to_create(instance)
        if found is None:
            raise RenderError(f"the group {instance.key} is no longer configured")
        return self._make(instance, found)

    def _make(self, instance: Instance, found: Resolved) -> CreateRequest:
        if ids.kind_of(instance.id) != found.group.kind:
            raise RenderError(f"the group's kind is now {found.group.kind}")
        return rendering.request(
            self.context,
            found,
            instance,
            nonce=self.issuer.token(instance),
            userdata=self._userdata_template(found),
            on_missing=lambda path: self.report_missing(instance.key, path),
        )

    def report_missing(self, key: GroupKey, path: str) -> None:
        """Record once that a template of the group prints a variable that is not set."""
        if (key, path) not in self._missing and len(self._missing) < MAX_MISSING_VARIABLES:
            self._missing.add((key, path))
            message = f"a template prints {path}, which is not set: it is rendered empty"
            log.warning(message, extra={"group": str(key)})
            self.parts.event_log.record(key, ReasonCode.CONFIG, message)

    def _userdata_template(self, resolved: Resolved) -> bytes | None:
        spec = resolved.userdata
        if spec is None or not self.supplies.uses_userdata:
            return None
        if spec.source == "inline":
            return spec.content.encode()
        fetched = self.supplies.userdata.text(spec.content)
        if fetched is None:
            raise NotFetchedError(f"userdata was not fetched yet from {http_fetch.without_secrets(spec.content)}")
        return fetched


def _add_request(resolved: Resolved, instance: Instance) -> Resolved:
    if not instance.on_demand:
        return resolved
    return resolving.resolve_on_demand(resolved, instance_type=instance.instance_type, vars=instance.vars)
