"""The requests to the provider for new VMs, made from the active configuration."""

import logging
from dataclasses import replace

from nstance.config import resolve as resolving
from nstance.config.resolve import Resolved
from nstance.model import ids
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey
from nstance.model.instance import Instance
from nstance.providers.port import CreateRequest
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.config.advertised import Advertised
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.supplies import Supplies
from nstance.server.state.event_log import EventLog
from nstance.server.workload import http_fetch, rendering
from nstance.server.workload.rendering import NotFetchedError, RenderContext, RenderError

log = logging.getLogger(__name__)

MAX_MISSING_VARIABLES = 1000  # that are reported in a term


class VmRequests:
    """Of one shard during one term."""

    def __init__(
        self,
        active_config: ActiveConfig,
        supplies: Supplies,
        issuer: Issuer,
        event_log: EventLog,
        advertised: Advertised,
    ) -> None:
        self._active_config = active_config
        self._supplies = supplies
        self._issuer = issuer
        self._event_log = event_log
        self._advertised = advertised
        self._missing: set[tuple[GroupKey, str]] = set()  # variables that were reported
        self.context = self._make_context()
        supplies.subscribe(self.refresh)

    def refresh(self, change: ConfigChange | None = None) -> None:
        """The configuration, an image or userdata changed."""
        self.context = self._make_context()

    def _make_context(self) -> RenderContext:
        return RenderContext(
            settings=self._active_config.configuration.settings,
            shard=self._active_config.shard,
            ca_bundle=self._issuer.authority.bundle,
            registration_addr=self._advertised.registration,
            agent_addr=self._advertised.agent,
            operator_addr=self._advertised.operator,
            images=self._supplies.images.values(),
        )

    def resolve(self, instance: Instance) -> Resolved | None:
        """The group of the instance as configured now, with what an on-demand request asked for; None if it is gone."""
        found = self._active_config.configuration.groups.get(instance.key)
        if found is None or not instance.on_demand:
            return found
        return resolving.resolve_on_demand(found, instance_type=instance.instance_type, vars=instance.vars)

    def complete_intent(self, instance: Instance) -> Instance:
        """Add the nonce's claims to a new intent, and the hash of the request that they lead to."""
        found = self.resolve(instance)
        if found is None:
            return instance
        if instance.nonce is None:
            instance = replace(instance, nonce=self._issuer.new_nonce(found.group.registration_timeout))
        try:
            return replace(instance, request_hash=rendering.request_hash(self.make(instance)))
        except RenderError as problem:
            # The create effect fails with the same error, and the record then ends with this reason.
            log.warning("failed to render an instance", extra={"instance": instance.id, "error": str(problem)})
            return instance

    def make(self, instance: Instance) -> CreateRequest:
        """Raises RenderError."""
        found = self.resolve(instance)
        if found is None:
            raise RenderError(f"the group {instance.key} is no longer configured")
        if ids.kind_of(instance.id) != found.group.kind:
            raise RenderError(f"the group's kind is now {found.group.kind}")
        return rendering.request(
            self.context,
            found,
            instance,
            nonce=self._issuer.token(instance),
            userdata=self._userdata_template(found),
            on_missing=lambda path: self.report_missing(instance.key, path),
        )

    def report_missing(self, key: GroupKey, path: str) -> None:
        """Record once that a template of the group prints a variable that is not set."""
        if (key, path) not in self._missing and len(self._missing) < MAX_MISSING_VARIABLES:
            self._missing.add((key, path))
            message = f"a template prints {path}, which is not set: it is rendered empty"
            log.warning(message, extra={"group": str(key)})
            self._event_log.record(key, ReasonCode.CONFIG, message)

    def _userdata_template(self, resolved: Resolved) -> bytes | None:
        spec = resolved.userdata
        if spec is None or not self._supplies.uses_userdata:
            return None
        if spec.source == "inline":
            return spec.content.encode()
        fetched = self._supplies.userdata.text(spec.content)
        if fetched is None:
            raise NotFetchedError(f"userdata was not fetched yet from {http_fetch.without_secrets(spec.content)}")
        return fetched
