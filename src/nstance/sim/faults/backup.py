"""Somebody restores the shard's part of the bucket from an older backup, while no server runs.

VMs that were made since the backup are then in no record. None of them may be deleted for that.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nstance.config import storage_keys
from nstance.sim.audit.auditor import Checkpoint
from nstance.sim.desired_groups import SHARD, DesiredGroups

if TYPE_CHECKING:
    from nstance.sim.world import World

PREFIX = f"shard/{SHARD}/"
QUIET_SECONDS = 10.0  # from the end of the last server to the restore: a write may land eight seconds late


@dataclass(frozen=True, slots=True)
class Backup:
    at: float
    objects: dict[str, bytes]
    desired_groups: DesiredGroups
    checkpoint: Checkpoint


def take(world: "World") -> Backup:
    objects = {key: body for key, body in world.storage.contents().items() if key.startswith(PREFIX)}
    objects[storage_keys.config(SHARD)] = world.desired_groups.text()  # whoever restores one that is broken mends it
    return Backup(world.now, objects, world.desired_groups, world.auditor.checkpoint())


def restore(world: "World", backup: Backup) -> None:
    """Stop all servers, put the bucket back, start them."""
    world.log("restore", round(backup.at, 3))
    world.servers_down = True
    for server in world.servers:
        world.kill(server)
    world.later(QUIET_SECONDS, _put_back, world, backup)


def _put_back(world: "World", backup: Backup) -> None:
    auditor = world.auditor
    auditor.deaf = True
    for key in world.storage.contents():
        if key.startswith(PREFIX) and key not in backup.objects:
            world.storage.tamper(key, None)
    for key, body in backup.objects.items():
        world.storage.tamper(key, body)
    auditor.deaf = False
    auditor.roll_back(backup.checkpoint)
    world.desired_groups = backup.desired_groups
    world.began -= world.now - backup.at  # the shard's time goes on from the lease, which is as old as the backup
    world.count("restored")
    world.log("restored")
    world.servers_down = False
