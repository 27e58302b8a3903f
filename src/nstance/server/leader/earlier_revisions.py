"""What instances of earlier revisions are made of, while a group moves on to another one.

The configuration holds only the current revision. Its checks and files are made for its own instances: an older one may
lack the service that is checked, or the new files may not be renderable at all. So an instance of an earlier revision
keeps the checks and files of that revision until it is replaced. A new leader reads them from storage. Until that is done
nothing is sent to such an instance, and nothing is concluded from its reports.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from nstance.config import resolve
from nstance.config.errors import ConfigError
from nstance.config.resolve import Resolved
from nstance.config.revision_spec import RevisionSpec
from nstance.core.rollout import short_hash
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey
from nstance.model.instance import ENDED
from nstance.model.rollout import Revision
from nstance.objects import errors
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.leader.revision_store import RevisionStore
from nstance.server.state.shard_parts import ShardParts
from nstance.server.waits import Waits

log = logging.getLogger(__name__)

CONCURRENT_READS = 8

_Id = tuple[GroupKey, str]  # a group and the infra hash of one of its revisions


class EarlierRevisions:
    """Of one shard during one term."""

    def __init__(self, parts: ShardParts, active_config: ActiveConfig, store: RevisionStore, waits: Waits) -> None:
        self._parts = parts
        self._active_config = active_config
        self._store = store
        self._waits = waits
        self._specs: dict[_Id, RevisionSpec] = {}
        self._lost: set[_Id] = set()  # their specs cannot be read
        self._unread: dict[_Id, None] = {}
        self._resolved: dict[_Id, tuple[Resolved, Resolved]] = {}  # with the current revision at that time
        self._wake = asyncio.Event()
        self._subscribers: list[Callable[[GroupKey], None]] = []

    def subscribe(self, *subscribers: Callable[[GroupKey], None]) -> None:
        """They are called when a revision of the group was read, or cannot be read."""
        self._subscribers += subscribers

    def specs(self) -> Iterable[RevisionSpec]:
        return self._specs.values()

    def resolve(self, current: Resolved, infra_hash: str) -> Resolved | None:
        """The group as the revision with this hash, or as the current one if nothing is known of that. None: it is being
        read."""
        if infra_hash in ("", current.group.infra_hash):
            return current
        id = current.group.key, infra_hash
        spec = self._specs.get(id)
        if spec is None:
            if id in self._lost:
                return current
            self._unread[id] = None
            self._wake.set()
            return None
        known = self._resolved.get(id)
        if known is None or known[0] is not current:
            settings = self._active_config.configuration.settings
            known = self._resolved[id] = current, resolve.resolve_revision(settings, current, spec)
        return known[1]

    def on_config_change(self, change: ConfigChange) -> None:
        """To be called before anybody resolves an instance with the new configuration."""
        for key, before in change.before.groups.items():
            after = change.after.groups.get(key)
            if after is not before and (after is None or after.group.infra_hash != before.group.infra_hash):
                self._forget_unused(key)
                if after is not None:
                    id = key, before.group.infra_hash
                    self._specs[id] = before.spec
                    self._lost.discard(id)

    def _forget_unused(self, key: GroupKey) -> None:
        used = {member.infra_hash for member in self._parts.state.members(key).values() if member.state not in ENDED}
        record = self._parts.state.group_records.get(key)
        used |= {revision.infra_hash for revision in record.revisions} if record is not None else set()
        for id in [id for id in (*self._specs, *self._lost) if id[0] == key]:
            self._resolved.pop(id, None)
            if id[1] not in used or key not in self._active_config.configuration.groups:
                self._specs.pop(id, None)
                self._lost.discard(id)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._parts.term.ready()
            while waiting := list(self._unread)[:CONCURRENT_READS]:
                await asyncio.gather(*(self._read(*id) for id in waiting))
                if any(id in self._unread for id in waiting):
                    await self._parts.clock.sleep(self._waits.revision_retry)

    async def _read(self, key: GroupKey, infra_hash: str) -> None:
        id = key, infra_hash
        try:
            self._specs[id] = await self._read_spec(key, infra_hash)
        except (errors.NotFoundError, ConfigError) as problem:
            self._lost.add(id)
            message = (
                f"failed to read revision {short_hash(infra_hash)}: its instances get the files and checks of the "
                f"current revision: {problem}"
            )
            log.warning(message, extra={"group": str(key)})
            self._parts.event_log.record(key, ReasonCode.ROLLOUT, message)
        except (errors.StorageError, TimeoutError) as problem:
            extra = {"group": str(key), "error": str(problem) or "timed out"}
            log.warning("failed to read a group revision, trying again", extra=extra)
            return
        self._unread.pop(id, None)
        for subscriber in self._subscribers:
            subscriber(key)

    async def _read_spec(self, key: GroupKey, infra_hash: str) -> RevisionSpec:
        revision = self._find(key, infra_hash)
        if revision is None:
            raise errors.NotFoundError("it is not in the group's history")
        spec = await self._store.read(key, revision)
        if spec.infra_hash != infra_hash:
            raise errors.NotFoundError("it has another meaning in this version of the server")
        return spec

    def _find(self, key: GroupKey, infra_hash: str) -> Revision | None:
        record = self._parts.state.group_records.get(key)
        revisions = record.revisions if record is not None else ()
        return next((each for each in reversed(revisions) if each.infra_hash == infra_hash), None)
