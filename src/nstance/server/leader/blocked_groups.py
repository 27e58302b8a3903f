"""Groups whose instances cannot be created now, because an image, userdata or the agent is missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nstance.config.resolve import Resolved
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.leader.supplies import Supplies
from nstance.server.leader.vm_requests import VmRequests
from nstance.server.state.event_log import EventLog
from nstance.server.state.inbox import Inbox
from nstance.server.workload import http_fetch, rendering


@dataclass(frozen=True, slots=True)
class _Blocker:
    message: str
    failed: bool  # the lookup failed; otherwise it is under way


@dataclass(eq=False)
class BlockedGroups:
    """Of one shard during one term."""

    active_config: ActiveConfig
    supplies: Supplies
    vm_requests: VmRequests
    inbox: Inbox
    event_log: EventLog
    _recorded: dict[GroupKey, str] = field(default_factory=dict)  # failures that are in the event log

    def __post_init__(self) -> None:
        self._blockers = self._find()
        self.supplies.subscribe(self.update)

    @property
    def reasons(self) -> Mapping[GroupKey, str]:
        return {key: blocker.message for key, blocker in self._blockers.items()}

    def reason(self, key: GroupKey) -> str:
        """Why no instance of the group can be created now; empty if one can."""
        blocker = self._blockers.get(key)
        return blocker.message if blocker is not None else ""

    def reason_of(self, resolved: Resolved) -> str:
        """The same for a group as another revision."""
        blocker = self._blocker(resolved)
        return blocker.message if blocker is not None else ""

    def failure(self, key: GroupKey) -> str:
        """The same, if a lookup has failed."""
        return self._recorded.get(key, "")

    def update(self, change: ConfigChange | None = None) -> None:
        """The configuration, an image or userdata changed."""
        before, self._blockers = self._blockers, self._find()
        now, groups = self._blockers, self.active_config.configuration.groups
        self.inbox.look_again([key for key in {**before, **now} if _message(before, key) != _message(now, key)])
        for key in [key for key in self._recorded if key not in now]:
            del self._recorded[key]
            if key in groups:
                message = "image and userdata are available: instances can be created again"
                self.event_log.record(key, ReasonCode.RECOVERED, message)
        for key, blocker in now.items():
            if blocker.failed and self._recorded.get(key) != blocker.message:
                self._recorded[key] = blocker.message
                self.event_log.record(key, ReasonCode.BLOCKED, f"no instance can be created: {blocker.message}")

    def _find(self) -> dict[GroupKey, _Blocker]:
        found = ((key, self._blocker(resolved)) for key, resolved in self.active_config.configuration.groups.items())
        return {key: blocker for key, blocker in found if blocker is not None}

    def _blocker(self, resolved: Resolved) -> _Blocker | None:
        texts = list(rendering.texts(resolved.args))
        spec = resolved.userdata if self.supplies.uses_userdata else None
        if spec is not None and spec.source == "url":
            body, place = self.supplies.userdata.text(spec.content), http_fetch.without_secrets(spec.content)
            if body is None:
                why = self.supplies.userdata.problem(spec.content)
                pending = f"userdata is being fetched from {place}"
                return _Blocker(f"userdata cannot be fetched from {place}: {why}" if why else pending, bool(why))
            texts.append(body.decode())
        elif spec is not None:
            texts.append(spec.content)
        if spec is not None and (place := rendering.unsigned_agent(self.vm_requests.context, resolved, texts[-1])):
            why = self.supplies.agent.problem(place)
            pending = f"a URL of the agent at {place} is being signed"
            return _Blocker(f"no URL of the agent at {place} can be signed: {why}" if why else pending, bool(why))
        for name in rendering.unknown_images(texts, self.vm_requests.context.images):
            why = self.supplies.images.problem(name)
            pending = f"the image {name} is being looked up"
            return _Blocker(f"the image {name} cannot be found: {why}" if why else pending, bool(why))
        return None


def _message(blockers: Mapping[GroupKey, _Blocker], key: GroupKey) -> str | None:
    blocker = blockers.get(key)
    return blocker.message if blocker is not None else None
