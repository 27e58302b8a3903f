"""Waiting until groups are as they are wished: looked at again and again, a shard that does not answer too."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nstance.admin import failures
from nstance.admin.client import Client
from nstance.admin.shard import asking, groups, instances, overview
from nstance.admin.shard.records import group, instance
from nstance.clock import Clock

LOOK_EVERY = 0.5

Progress = Callable[[str], None]


async def until_stable(
    found: Sequence[Client], wanted: Sequence[str], *, within: float, progress: Progress, clock: Clock
) -> list[str]:
    """What should be known of the groups although they are stable, such as that one is paused. Raises Refused with what is
    still missing when the time is over, and at once for a group that nobody has."""
    deadline = clock.monotonic() + within
    known = False
    while True:
        answers = await asking.each(found, lambda client: _look(client, wanted))
        if wanted and not known and not answers.bad:
            _check_known(wanted, [name for _, look in answers.good for name in look.names])
            known = True
        told = [f"{_where(shard, found)}{line}" for shard, look in answers.good for line in look.missing]
        told += [f"shard {shard}: {failures.explain(problem)}" for shard, problem in answers.bad]
        if not told:
            return [f"{_where(shard, found)}{line}" for shard, look in answers.good for line in look.concerns]
        progress("; ".join(told))
        left = deadline - clock.monotonic()
        if left <= 0:
            raise failures.Refused(f"not stable after {within:g} s: {'; '.join(told)}")
        await clock.sleep(min(LOOK_EVERY, left))


@dataclass(frozen=True, slots=True)
class _Look:
    missing: Sequence[str]  # a line for each group that is not stable
    concerns: Sequence[str]  # a line for each group of which something else should be known
    names: Sequence[str]  # the groups that were looked at


async def _look(client: Client, wanted: Sequence[str]) -> _Look:
    found = await groups.everything(client)
    all_instances = [instance(client.shard, each) for each in await instances.everything(client)]
    lines, concerns, names = [], [], []
    for each in found:
        if wanted and each.key not in wanted:
            continue
        names.append(each.key)
        view = overview.view(group(client.shard, each), all_instances)
        if view.unsettled:
            error = f" ({view.group['last_error']})" if view.group["last_error"] else ""
            lines.append(f"{each.key} {', '.join(view.unsettled)}{error}")
        if view.concerns:
            concerns.append(f"{each.key} is stable, but: {', '.join(view.concerns)}")
    # A group that was deleted is stable when its last instance has left; those on demand stay.
    left = Counter(
        each["group"] for each in all_instances if not each["on_demand"] or each["state"] in overview.LEAVING
    )
    for name, count in sorted(left.items()):
        if all(each.key != name for each in found) and (not wanted or name in wanted):
            names.append(name)
            lines.append(f"{name} is deleted, {count} leaving")
    return _Look(lines, concerns, names)


def _check_known(wanted: Sequence[str], names: Sequence[str]) -> None:
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise failures.Refused(f"there is no group {', '.join(unknown)}; see `nstance-admin group list`")


def _where(shard: str, found: Sequence[Client]) -> str:
    return f"{shard}/" if len(found) > 1 else ""
