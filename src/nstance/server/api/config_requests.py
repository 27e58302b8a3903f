"""Requests about the configuration: its status, reading it again, and what a new one would change."""

import asyncio
from collections.abc import Sequence

from nstance.config import storage_keys
from nstance.config.errors import Problem
from nstance.model.ids import DEFAULT_TENANT, ServerId, TenantId
from nstance.objects import errors as storage
from nstance.objects.port import ObjectStore
from nstance.server.api import plans
from nstance.server.config import configuration as configurations
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.configuration import Configuration, NoConfigurationError
from nstance.server.state.shard import Shard
from nstance.v1 import operator_pb2
from nstance.wire import status

HEAD_TIMEOUT_SECONDS = 5.0


class ConfigRequests:
    def __init__(self, active_config: ActiveConfig, shard: Shard, store: ObjectStore, *, server: ServerId) -> None:
        self._active_config = active_config
        self._shard = shard
        self._store = store
        self._name = active_config.shard
        self._server = server

    async def status(self, tenant: TenantId, *, held: Sequence[str]) -> operator_pb2.ConfigStatus:
        """`held`: what is said about held groups."""
        configuration = self._active_config.configuration
        return operator_pb2.ConfigStatus(
            etag=configuration.version,
            last_modified_unix=await self._modified(configuration),
            size=configuration.size,
            cluster=configuration.settings.cluster.id,
            shard=self._name,
            leader=self._server,
            epoch=self._shard.term.epoch,
            errors=[*self._errors(tenant), *held],
            templates=sorted(configuration.settings.templates),
        )

    async def refresh(self, tenant: TenantId) -> operator_pb2.RefreshConfigResponse:
        active_config = self._active_config
        previous = active_config.configuration.version
        updated = await active_config.refresh()
        if not active_config.is_readable:
            raise status.unavailable("failed to read the configuration, the old one stays active; try again")
        now = active_config.configuration
        return operator_pb2.RefreshConfigResponse(
            updated=updated,
            previous_etag=previous,
            etag=now.version,
            errors=self._errors(tenant),
            needs_restart=configurations.needs_restart(active_config.booted.settings, now.settings),
            warnings=configurations.overridden(now, [key for key in now.groups if key.tenant == tenant]),
        )

    async def read_newest(self) -> Configuration:
        """What a refresh would activate."""
        try:
            return await self._active_config.read_newest()
        except (storage.StorageError, TimeoutError):
            raise status.unavailable("failed to read the configuration, try again") from None

    async def plan_refresh(self, tenant: TenantId) -> operator_pb2.RefreshConfigResponse:
        """What the configuration in the bucket would change, without activating it."""
        now = self._active_config.configuration
        try:
            found = await configurations.read(self._store, self._name, before=now)
        except NoConfigurationError as error:
            errors = self._visible_problems(str(error), error.problems, tenant)
            return operator_pb2.RefreshConfigResponse(previous_etag=now.version, etag=now.version, errors=errors)
        except (storage.StorageError, TimeoutError):
            raise status.unavailable("failed to read the configuration, try again") from None
        plan = []
        keys = [key for key in sorted({*now.groups, *found.groups}) if key.tenant == tenant]
        for key in keys:
            resolved = found.groups.get(key)
            desired = resolved.group if resolved is not None else None
            if desired is None or not desired.paused:
                plan += plans.plan(self._shard, key, desired, policy=found.policy)
        return operator_pb2.RefreshConfigResponse(
            updated=(found.version, found.dynamic_version) != (now.version, now.dynamic_version),
            previous_etag=now.version,
            etag=found.version,
            needs_restart=configurations.needs_restart(self._active_config.booted.settings, found.settings),
            plan=plan,
            warnings=configurations.overridden(found, keys),
        )

    async def _modified(self, configuration: Configuration) -> int:
        """When the active configuration was written; 0 if that is not known now."""
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_SECONDS):
                head = await self._store.head(storage_keys.config(self._name))
        except (storage.StorageError, TimeoutError):
            return 0
        return int(head.modified) if head.version == configuration.version else 0

    def _errors(self, tenant: TenantId) -> list[str]:
        """Why a newer configuration was rejected, without problems in other tenants' groups."""
        return self._visible_problems(self._active_config.rejection, self._active_config.problems, tenant)

    def _visible_problems(self, rejection: str, problems: Sequence[Problem], tenant: TenantId) -> list[str]:
        if rejection and not problems:
            return [rejection]
        tenants = self._active_config.configuration.settings.tenants
        visible = []
        for problem in problems:
            owner = problem.path.split(".")[1] if problem.path.startswith("groups.") else tenant
            if problem.path == storage_keys.groups(self._name):
                owner = ""  # the file of all tenants: a message may quote anything of it
            if owner == tenant or (tenant == DEFAULT_TENANT and owner not in tenants):
                visible.append(str(problem))
        others = len(problems) - len(visible)
        return [*visible, f"and {others} problems in groups of other tenants"] if others else visible
