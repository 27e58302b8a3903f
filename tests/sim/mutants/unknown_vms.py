"""Defects in what the provider's answers prove about VMs that are new, gone, or in no record."""

from sim.mutants.mutant import Mutant

UNKNOWN = ("tests/unit/core/test_core_unknown.py",)
HOLDING = ("tests/unit/core/test_core_held_groups.py",)
BACKUP = ("tests/component/test_admin_cluster_backup.py",)
RESTORED = ("tests/component/test_server_restored.py",)
GROUPS = ("tests/component/test_operator_service_groups.py",)
UNKNOWN_VMS_TESTS = ("tests/unit/server/test_unknown_vms.py",)

UNKNOWN_VMS: tuple[Mutant, ...] = (
    Mutant(
        "new-vm-not-found-is-gone",
        "nstance.core.observe",
        "    if absent and instance.made is not None and asked < instance.made + CONSISTENCY_LAG_SECONDS:\n",
        "    if False:\n",
        "a new leader takes a VM for gone that the provider does not show yet",
        seeds=(562,),
    ),
    Mutant(
        "deleted-vm-still-shown-is-back",
        "nstance.core.observe",
        "    if instance.ended is not None and asked < instance.ended + CONSISTENCY_LAG_SECONDS:\n",
        "    if False:\n",
        "a deleted VM that a lagging answer still shows is deleted again",
    ),
    Mutant(
        "unknown-vm-is-deleted",
        "nstance.core.inventory",
        "    can_delete = scope.delete_unknown and not too_many and not mass_absence\n",
        "    can_delete = not too_many and not mass_absence\n",
        "after a restored backup healthy VMs are deleted as orphans",
    ),
    Mutant(
        "adopted-beyond-the-size",
        "nstance.core.adopting",
        "        if missing > 0 and unknown.agent is not None:\n",
        "        if unknown.agent is not None:\n",
        "more VMs are adopted than the group has places for, and others are scaled away",
        seeds=(559,),
    ),
    Mutant(
        "adopted-into-an-occupied-place",
        "nstance.core.scaling",
        "        missing = max(0, missing - rotation.count_occupied_places(draft))\n"
        "    if missing > 0:\n"
        "        missing = adopting.adopt_missing(draft, missing)\n",
        "        missing = max(0, adopting.adopt_missing(draft, missing) - rotation.count_occupied_places(draft))\n",
        "a rollout and an adopted VM exceed the limits together",
        tests=UNKNOWN,
    ),
    Mutant(
        "registration-lost-with-the-backup",
        "nstance.server.identity.restored_agents",
        "    if instance is not None:\n        return ev.Registered(",
        "    if instance is not None and instance.public_key:\n        return ev.Registered(",
        "an agent whose registration a restored journal does not know is given up",
        tests=RESTORED,
    ),
    Mutant(
        "agents-are-not-waited-for",
        "nstance.core.adopting",
        "    if missing > 0 and draft.now < until and (expected := len(_candidates(draft))):\n",
        "    if False:\n",
        "new VMs are made while the agents of held ones still reconnect",
        tests=UNKNOWN,
    ),
    Mutant(
        "created-before-the-first-listing",
        "nstance.core.adopting",
        "    if not view.listed and draft.now < view.listening_since + FIRST_LISTING_SECONDS:\n",
        "    if False:\n",
        "a restored shard creates its VMs again before it has listed the provider",
        tests=UNKNOWN,
    ),
    Mutant(
        "many-unknown-vms-deleted-at-once",
        "nstance.core.inventory",
        "    too_many = scope.delete_unknown and len(unknown) > max(UNKNOWN_AT_LEAST, UNKNOWN_SHARE * total)\n",
        "    too_many = False\n",
        "no brake: a whole fleet without records is deleted",
        tests=UNKNOWN,
    ),
    Mutant(
        "missing-group-is-scaled-away",
        "nstance.core.decide",
        "    if record is None or not record.dynamic:\n",
        "    if True:\n",
        "a group that groups.jsonc has lost loses its instances",
        tests=HOLDING,
    ),
    Mutant(
        "lost-override-is-followed",
        "nstance.core.decide",
        "    return desired is None or (desired.static and not desired.overridden and view.groups_lost)\n",
        "    return desired is None\n",
        "without groups.jsonc a static group falls back to the size of the file",
        tests=HOLDING,
    ),
    Mutant(
        "deletion-by-name-is-forgotten",
        "nstance.server.api.group_writer",
        "                    self.shard.delete_group(key)  # decided together with its absence\n",
        "                    pass\n",
        "a deleted group is announced as held",
        tests=GROUPS,
    ),
    Mutant(
        "another-tenants-agent-is-adopted",
        "nstance.server.state.unknown_vms",
        "        return agent if agent is not None and agent.tenant == vm.tenant else None\n",
        "        return agent\n",
        "a VM is adopted with the certificate of another tenant",
        tests=UNKNOWN_VMS_TESTS,
    ),
    Mutant(
        "restored-epoch-is-used-twice",
        "nstance.admin.cluster.restore",
        "                epoch=max(previous.epoch, state.epoch),\n",
        "                epoch=state.epoch,\n",
        "after a restore a paused leader of the lost future has the newest epoch",
        tests=BACKUP,
    ),
    Mutant(
        "half-a-restore-is-led-on",
        "nstance.admin.cluster.restore",
        "        return await self._write_lease(name, seen, tail=UNREACHABLE_SLOT)\n",
        "        return await self._write_lease(name, seen, tail=0)\n",
        "a server that is started too early leads on half a journal",
        tests=BACKUP,
    ),
)
