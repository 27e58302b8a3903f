"""Rollback, resumption and status of rollouts.

A rollback is an entry in `groups.jsonc` with all parts of the earlier revision. It applies as long as the configuration
still asks for the revision that was rolled back, so the next change of the configuration ends it.
"""

import asyncio
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance.clock import Clock
from nstance.config import dynamic as dynamics
from nstance.config.dynamic import DynamicGroups, Rollback
from nstance.config.errors import ConfigError
from nstance.config.model.settings import Settings
from nstance.config.revision_spec import RevisionSpec
from nstance.core import rollout
from nstance.core.draft import drifted
from nstance.core.rotation import max_surge
from nstance.model import events as ev
from nstance.model.decision import ReasonCode, Rejection
from nstance.model.group import Group, OnFailure, UpdateOrder
from nstance.model.ids import GroupKey
from nstance.model.instance import Instance, State
from nstance.model.rollout import GroupRecord, Outcome, Revision
from nstance.objects import errors
from nstance.server.api import asking, group_writer
from nstance.server.api.group_writer import Edit, GroupWriter
from nstance.server.api.tenancy import no_group
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.config.configuration import Configuration
from nstance.server.leader.revision_store import RevisionStore
from nstance.server.leader.step_times import StepTimes
from nstance.server.state.commits import Committed
from nstance.server.state.shard import Shard
from nstance.v1 import operator_pb2
from nstance.wire import status

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
AUTOMATIC = "on_failure"
_RETRYABLE = (Status.UNAVAILABLE, Status.ABORTED, Status.RESOURCE_EXHAUSTED)


@dataclass(eq=False)
class RolloutRequests:
    shard: Shard
    active_config: ActiveConfig
    revisions: RevisionStore
    groups: GroupWriter
    clock: Clock
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: set[tuple[GroupKey, str]] = field(default_factory=set)  # revisions that cannot be rolled back

    def __post_init__(self) -> None:
        self._wake.set()  # an earlier leader may have left work

    async def roll_back(self, key: GroupKey, revision: str, *, by: str) -> Edit:
        """The edit that returns the group to a revision; without one, to the last complete revision."""
        record = self.shard.group_records.get(key)
        target = _target(record, revision, rolled_back=self.is_rolled_back(key))
        parts = await self._read(key, target)

        def edit(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
            group = dynamic.groups.get(key)
            own = group_writer.resolve_group(settings, dynamics.roll_back(dynamic, key, None), key)
            if own is None:
                raise no_group()
            if own.group.infra_hash == target.infra_hash:
                if group is None or group.rollback is None:
                    raise status.failed_precondition("the configuration asks for this revision already")
                return dynamics.roll_back(dynamic, key, None)
            entry = Rollback(
                to=target.infra_hash,
                instead_of=own.group.infra_hash,
                by=by,
                template=parts.template,
                certificates=parts.certificates,
            )
            return dynamics.roll_back(dynamic, key, entry)

        return edit

    async def _read(self, key: GroupKey, target: Revision) -> RevisionSpec:
        name = rollout.short_hash(target.infra_hash)
        try:
            parts = await self.revisions.read(key, target)
        except (errors.NotFoundError, ConfigError) as problem:
            raise status.failed_precondition(
                f"revision {name} cannot be restored, its parts are not in the bucket ({problem}): "
                "change the configuration instead"
            ) from None
        except (errors.StorageError, TimeoutError):
            raise status.unavailable("failed to read the revision, try again") from None
        if parts.infra_hash != target.infra_hash:
            raise status.failed_precondition(
                f"revision {name} cannot be restored, it has another meaning in this version of the server: "
                "change the configuration instead"
            )
        return parts

    def is_rolled_back(self, key: GroupKey) -> bool:
        resolved = self.active_config.configuration.groups.get(key)
        return resolved is not None and bool(resolved.group.rolled_back_from)

    async def resume(self, key: GroupKey, *, by: str) -> None:
        """Resumes a rollout that is paused or halted."""
        if await asking.ask(self.shard, ev.RolloutResumed(by), key=key) is Rejection.NOT_HELD:
            raise not_held()

    # ---- automatic rollbacks

    def observe(self, committed: Committed) -> None:
        if any(reason.code is ReasonCode.ROLLOUT_HALTED for reason in committed.reasons):
            self._wake.set()

    def on_config_change(self, change: ConfigChange) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Rolls back halted rollouts where that is configured, and removes rollbacks that have ended. Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.shard.term.ready()
            for key in self._ended():
                # Otherwise it would apply again if the configuration asked for that revision again.
                await self._attempt(key, end_rollback(key, only_if_ended=True))
            for key, revision in list(self._to_roll_back()):
                try:
                    await self._attempt(key, await self.roll_back(key, "", by=AUTOMATIC))
                except GRPCError as error:
                    if self._is_final(key, error):
                        self._failed.add((key, revision))
                        self.shard.event_log.record(key, ReasonCode.ROLLOUT, f"failed to roll back: {error.message}")

    async def _attempt(self, key: GroupKey, edit: Edit) -> None:
        try:
            await self.groups.change(edit, who=AUTOMATIC)
        except GRPCError as error:
            self._is_final(key, error)

    def _is_final(self, key: GroupKey, error: GRPCError) -> bool:
        """Whether a retry cannot help. If it can, one is scheduled."""
        log.warning("failed to change a rollback", extra={"group": str(key), "error": error.message})
        if error.status not in _RETRYABLE:
            return True
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wake.set)
        return False

    def _ended(self) -> list[GroupKey]:
        configuration = self.active_config.configuration
        return [
            key
            for key, group in configuration.dynamic.groups.items()
            if group.rollback is not None
            and key in configuration.groups
            and not configuration.groups[key].group.rolled_back_from
        ]

    def _to_roll_back(self) -> Iterable[tuple[GroupKey, str]]:
        shard = self.shard
        for key, record in shard.group_records.items():
            desired, current = shard.desired_groups.get(key), record.current
            if (
                desired is not None
                and current is not None
                and desired.on_failure is OnFailure.ROLLBACK
                and not desired.rolled_back_from
                and not desired.paused
                and current.outcome is Outcome.HALTED
                and current.failures  # not one that stops after its canaries
                and current.infra_hash == desired.infra_hash
                and (key, current.infra_hash) not in self._failed
            ):
                yield key, current.infra_hash


def _target(record: GroupRecord | None, revision: str, *, rolled_back: bool) -> Revision:
    if not revision:
        found = record.last_complete() if record is not None else None
        if found is None:
            hint = "; `group resume-rollout` ends its rollback" if rolled_back else ""
            raise status.failed_precondition(f"this group has no earlier revision that was complete{hint}")
        return found
    known = [r for r in record.revisions if r.infra_hash.removeprefix("sha256:").startswith(revision)] if record else []
    if len({r.infra_hash for r in known}) != 1:
        problem = "names several revisions" if known else "is no revision of this group"
        raise status.invalid("revision", f"{revision[:64]} {problem}: see `group history`")
    return known[-1]


def end_rollback(key: GroupKey, *, only_if_ended: bool = False) -> Edit:
    """The edit that returns to the configuration. `only_if_ended`: unless the rollback still applies."""

    def edit(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
        found = group_writer.resolve_group(settings, dynamic, key)
        if only_if_ended and found is not None and found.group.rolled_back_from:
            return dynamic
        return dynamics.roll_back(dynamic, key, None)

    return edit


def not_held() -> GRPCError:
    return status.failed_precondition("its rollout is neither paused nor halted, and it is not rolled back")


def revision_status(revision: Revision) -> operator_pb2.RolloutStatus:
    return operator_pb2.RolloutStatus(
        revision=revision.infra_hash,
        outcome=revision.outcome.value,
        by=revision.by,
        started_unix_ms=int(revision.started * 1000),
        finished_unix_ms=int(revision.finished * 1000) if revision.finished is not None else 0,
        failures=revision.failures,
        message=revision.message,
    )


def current_status(shard: Shard, desired: Group) -> operator_pb2.RolloutStatus | None:
    """The progress of the current revision."""
    record = shard.group_records.get(desired.key)
    if record is None or record.current is None:
        return None
    result = revision_status(record.current)
    counted = [m for m in shard.members(desired.key).values() if m.counts]
    current = [m for m in counted if m.infra_hash == record.current.infra_hash]
    result.updated, result.outdated = len(current), len(counted) - len(current)
    result.ready = sum(_is_ready(shard, m) for m in current)
    if desired.rolled_back_from:
        configured = rollout.short_hash(desired.rolled_back_from)
        notice = f"rolled back, the configuration asks for {configured}"
        result.message = f"{notice}; {result.message}" if result.message else notice
    return result


def _is_ready(shard: Shard, instance: Instance) -> bool:
    facts = shard.facts.get(instance.id)
    if facts is None or instance.state is not State.RUNNING or instance.suspect:
        return False
    return facts.agent.ready and facts.agent.connected


def _pause_seconds(desired: Group, current: Revision | None) -> float:
    """How long the rollout will pause after its canaries; 0 also if it waits for a person."""
    resumed = current is not None and current.infra_hash == desired.infra_hash and current.resumed_at is not None
    if resumed or desired.rolled_back_from or desired.canary >= desired.size:
        return 0.0
    return desired.pause_after_canary or 0.0


def plan(
    shard: Shard, step_times: StepTimes, configuration: Configuration, key: GroupKey
) -> operator_pb2.RolloutPlan | None:
    """What remains to be replaced with this configuration."""
    desired = configuration.groups[key].group
    outdated = sum(m.counts and drifted(m, desired) for m in shard.members(key).values())
    if not outdated:
        return None
    record = shard.group_records.get(key)
    current = record.current if record is not None else None
    held = current is not None and current.infra_hash == desired.infra_hash and current.outcome in rollout.HELD
    at_once = 1 if desired.order is UpdateOrder.SERIAL else min(outdated, max_surge(desired) + desired.max_unavailable)
    step = step_times.step_seconds(key, shard.members(key).values())
    seconds = None if step is None else math.ceil(outdated / at_once) * (step + desired.settle)
    if seconds is not None:
        seconds += _pause_seconds(desired, current)
    # Only replacements that are created first exist beside the old instances.
    extra = None if step is None else min(1.0, max_surge(desired) / at_once) * outdated * step
    return operator_pb2.RolloutPlan(
        instances=outdated,
        at_once=at_once,
        order=desired.order.value,
        estimate_ms=0 if seconds is None else max(1, int(seconds * 1000)),
        extra_vm_ms=0 if not extra else max(1, int(extra * 1000)),
        held=f"{current.outcome.value}: {current.message}" if held and current is not None else "",
    )
