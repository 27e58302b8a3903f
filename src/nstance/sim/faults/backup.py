"""Restores the shard's part of the bucket from an older backup while no server runs.

VMs that were created since the backup then have no record. None of them may be deleted for that.
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
    objects[storage_keys.config(SHARD)] = world.desired_groups.text()  # a broken one would be repaired
    return Backup(world.now, objects, world.desired_groups, world.auditor.checkpoint())


def restore(world: "World", backup: Backup) -> None:
    """Stop all servers, restore the bucket, start them."""
    world.log("restore", round(backup.at, 3))
    world.servers_down = True
    for server in world.servers:
        world.kill(server)
    world.later(QUIET_SECONDS, _restore_bucket, world, backup)


def _restore_bucket(world: "World", backup: Backup) -> None:
    auditor = world.auditor
    auditor.is_restoring = True
    for key in world.storage.contents():
        if key.startswith(PREFIX) and key not in backup.objects:
            world.storage.tamper(key, None)
    for key, body in backup.objects.items():
        world.storage.tamper(key, body)
    auditor.is_restoring = False
    auditor.restore(backup.checkpoint)
    world.desired_groups = backup.desired_groups
    if world.faults_stopped:
        world.configure(world.desired_groups.without_expiry())
    world.began -= world.now - backup.at  # the shard's time continues from the lease, which is as old as the backup
    world.count("restored")
    world.log("restored")
    world.servers_down = False
