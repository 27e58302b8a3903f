"""What leaders may have believed to be desired, as far back as a decision takes to be stored."""

from typing import TYPE_CHECKING

from nstance.model.group import Group
from nstance.model.ids import GroupKey

if TYPE_CHECKING:
    from nstance.sim.world import World

COMMIT_SECONDS = 30.0  # within which a decision is stored


class DesiredHistory:
    def __init__(self, world: "World") -> None:
        self._world = world
        # By the ID of the object, which stays alive here.
        self._seen: dict[GroupKey, dict[int, tuple[float, Group]]] = {}

    def note(self) -> None:
        """Remembers each server's active configuration."""
        for server in self._world.servers:
            if server.elector is not None:
                for key, resolved in server.active_config.configuration.groups.items():
                    group = resolved.group
                    self._seen.setdefault(key, {})[id(group)] = self._world.now, group

    def of(self, key: GroupKey) -> list[Group]:
        self.note()
        oldest = self._world.now - COMMIT_SECONDS
        return [group for at, group in self._seen.get(key, {}).values() if at >= oldest]

    def of_revision(self, key: GroupKey, infra_hash: str) -> Group | None:
        """The group as it was configured when an instance of that revision was created, at any time before."""
        self.note()
        return next((group for _, group in self._seen.get(key, {}).values() if group.infra_hash == infra_hash), None)
