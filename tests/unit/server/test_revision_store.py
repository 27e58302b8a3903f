"""Revisions of groups in storage, as a new leader finds them."""

from types import SimpleNamespace
from typing import Any, cast

from nstance.clock import SystemClock
from nstance.config import storage_keys
from nstance.config.dynamic import DynamicGroups
from nstance.model.ids import GroupKey
from nstance.objects.memory import MemoryStore
from nstance.server.config import configuration
from nstance.server.leader.revision_store import RevisionStore
from nstance.server.waits import WAITS
from nstance.sim.desired_groups import SHARD, DesiredGroup, DesiredGroups


async def test_groups_whose_revisions_are_stored_are_decided_in_one_order_in_every_process() -> None:
    """The order of a set of names differs from process to process, and with it the schedule of a simulated shard."""
    wanted = DesiredGroups(groups={f"group-{number:02}": DesiredGroup() for number in range(20)})
    groups = configuration.resolve(configuration.parse(wanted.text(), shard=SHARD, source="test"), DynamicGroups())
    store, decided = MemoryStore(SystemClock()), list[GroupKey]()
    for key, each in groups.items():
        hashes = {"infra_hash": each.group.infra_hash, "runtime_hash": each.group.parts_hash}
        store.tamper(storage_keys.revision(SHARD, key, **hashes), b"{}")
    parts: Any = SimpleNamespace(
        inbox=SimpleNamespace(look_again=decided.extend), state=SimpleNamespace(group_records={})
    )
    active_config = SimpleNamespace(shard=SHARD, configuration=SimpleNamespace(groups=groups))
    await RevisionStore(parts, cast(Any, active_config), store, WAITS)._list()
    assert decided == sorted(groups)
