"""Waits until groups are stable. A shard that does not answer counts as not stable and is asked again."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nstance.admin import errors
from nstance.admin.client import Client
from nstance.admin.shard import fanout, groups, instances, overview
from nstance.admin.shard.records import group, instance
from nstance.clock import Clock
from nstance.model.counts import count

POLL_SECONDS = 0.5


async def until_stable(
    clients: Sequence[Client],
    wanted: Sequence[str],
    *,
    within: float,
    on_progress: Callable[[str], None],
    clock: Clock,
) -> list[str]:
    """Returns notes about stable groups, such as that one is paused. Raises CommandError with what is missing when the
    time is over, and at once for a group that no shard has."""
    deadline = clock.monotonic() + within
    is_checked = False
    while True:
        answers = await fanout.call_each(clients, lambda client: _check(client, wanted))
        if wanted and not is_checked and not answers.failures:
            found = {name for _, state in answers.results for name in state.names}
            if unknown := [name for name in wanted if name not in found]:
                raise errors.CommandError(f"there is no group {', '.join(unknown)}; see `nstance-admin group list`")
            is_checked = True
        prefixed = [(f"{shard}/" if len(clients) > 1 else "", state) for shard, state in answers.results]
        missing = [f"{prefix}{line}" for prefix, state in prefixed for line in state.unstable]
        missing += [f"shard {shard}: {errors.explain(error)}" for shard, error in answers.failures]
        if not missing:
            return [f"{prefix}{line}" for prefix, state in prefixed for line in state.notes]
        on_progress("; ".join(missing))
        remaining = deadline - clock.monotonic()
        if remaining <= 0:
            raise errors.CommandError(f"not stable after {within:g} s: {'; '.join(missing)}")
        await clock.sleep(min(POLL_SECONDS, remaining))


@dataclass(slots=True)
class _State:
    unstable: list[str] = field(default_factory=list)  # a line for each unstable group
    notes: list[str] = field(default_factory=list)  # a line for each stable group that needs attention
    names: list[str] = field(default_factory=list)  # the groups that were checked


async def _check(client: Client, wanted: Sequence[str]) -> _State:
    found = await groups.list_groups(client)
    all_instances = [instance(client.shard, each) for each in await instances.list_instances(client)]
    state = _State()
    for each in found:
        if wanted and each.key not in wanted:
            continue
        state.names.append(each.key)
        view = overview.group_view(group(client.shard, each), all_instances)
        if view.unsettled:
            problem = view.group["last_error"]
            error = f" ({problem})" if problem and not any(problem in each for each in view.unsettled) else ""
            state.unstable.append(f"{each.key} {', '.join(view.unsettled)}{error}")
        if view.concerns:
            state.notes.append(f"{each.key} is stable, but: {', '.join(view.concerns)}")
    # A deleted group is stable when its last instance is gone; on-demand ones stay.
    remaining = Counter(
        each["group"] for each in all_instances if not each["on_demand"] or each["state"] in overview.LEAVING
    )
    for name, number in sorted(remaining.items()):
        if all(each.key != name for each in found) and (not wanted or name in wanted):
            state.names.append(name)
            state.unstable.append(
                f"{name} is not configured (deleted, or held), it still has {count(number, 'instance')}"
            )
    return state
