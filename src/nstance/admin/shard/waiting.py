"""Waits until groups are stable. A shard that does not answer counts as not stable and is asked again.

Progress counts steps: an instance that must become ready, leave or be replaced is one. The time that is left follows from
the steps so far. Before the first one, it is what the server measured for a rollout.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nstance.admin import errors
from nstance.admin.client import Client
from nstance.admin.shard import fanout, groups, instances, overview
from nstance.admin.shard.records import age, group, instance
from nstance.clock import Clock
from nstance.model.counts import count

POLL_SECONDS = 0.5
BAR_WIDTH = 20

OnProgress = Callable[[str, str], None]  # what is missing, and how far it is


class Progress:
    """How far a wait is. Pure: the time comes in."""

    def __init__(self) -> None:
        self._total = 0
        self._started = 0.0
        self._expected: float | None = None

    def update(self, left: int, *, now: float, expected: float = 0.0) -> str:
        """`left`: the number of steps to go; `expected`: the seconds that the server expects, 0 if it does not know."""
        if left > self._total:  # more work than before: what was measured does not count
            self._total, self._started, self._expected = left, now, expected or None
        done = self._total - left
        if not self._total:
            return ""
        filled = done * BAR_WIDTH // self._total
        return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done}/{self._total}{self._estimate(done, left, now)}"

    def _estimate(self, done: int, left: int, now: float) -> str:
        passed = now - self._started
        if done and left:
            return f", about {age(passed * left / done)} left"
        if left and self._expected is not None and self._expected > passed:
            return f", about {age(self._expected - passed)} left"
        return ""


async def until_stable(
    clients: Sequence[Client],
    wanted: Sequence[str],
    *,
    within: float,
    on_progress: OnProgress,
    clock: Clock,
) -> list[str]:
    """Returns notes about stable groups, such as that one is paused. Raises CommandError with what is missing when the
    time is over, and at once for a group that no shard has."""
    deadline = clock.monotonic() + within
    is_checked = False
    progress = Progress()
    while True:
        answers = await fanout.call_each(clients, lambda client: _check(client, wanted))
        if wanted and not is_checked and not answers.failures:
            found = {name for _, state in answers.results for name in state.names}
            if unknown := [name for name in wanted if name not in found]:
                near = errors.did_you_mean(unknown[0], (name for _, state in answers.results for name in state.known))
                raise errors.CommandError(
                    f"there is no group {', '.join(unknown)}{near}; see `nstance-admin group list`"
                )
            is_checked = True
        prefixed = [(f"{shard}/" if len(clients) > 1 else "", state) for shard, state in answers.results]
        missing = [f"{prefix}{line}" for prefix, state in prefixed for line in state.unstable]
        missing += [f"shard {shard}: {errors.explain(error)}" for shard, error in answers.failures]
        if not missing:
            return [f"{prefix}{line}" for prefix, state in prefixed for line in state.notes]
        if not answers.failures:
            left = sum(state.left for _, state in answers.results)
            expected = max((state.expected for _, state in answers.results), default=0.0)
            how_far = progress.update(left, now=clock.monotonic(), expected=expected)
        else:
            how_far = ""
        on_progress("; ".join(missing), how_far)
        remaining = deadline - clock.monotonic()
        if remaining <= 0:
            raise errors.CommandError(f"not stable after {within:g} s: {'; '.join(missing)}")
        await clock.sleep(min(POLL_SECONDS, remaining))


@dataclass(slots=True)
class _State:
    unstable: list[str] = field(default_factory=list)  # a line for each unstable group
    notes: list[str] = field(default_factory=list)  # a line for each stable group that needs attention
    names: list[str] = field(default_factory=list)  # the groups that were checked
    known: list[str] = field(default_factory=list)  # all groups
    left: int = 0  # steps to go
    expected: float = 0.0  # seconds that the server expects rollouts to take; 0: unknown


async def _check(client: Client, wanted: Sequence[str]) -> _State:
    found = await groups.list_groups(client)
    all_instances = [instance(client.shard, each) for each in await instances.list_instances(client)]
    state = _State(known=[each.key for each in found])
    for each in found:
        if wanted and each.key not in wanted:
            continue
        state.names.append(each.key)
        view = overview.group_view(group(client.shard, each), all_instances)
        if view.unsettled:
            problem = view.group["last_error"]
            error = f" ({problem})" if problem and not any(problem in each for each in view.unsettled) else ""
            state.unstable.append(f"{each.key} {', '.join(view.unsettled)}{error}")
            state.left += overview.steps_left(view.group, all_instances)
            if view.group["rollout"] is not None and view.group["rollout"]["outdated"]:
                plan = await client.call("PlanGroup", key=each.key)
                state.expected = max(state.expected, plan.rollout.estimate_ms / 1000)
        if view.concerns:
            state.notes.append(f"{each.key} is stable, but: {', '.join(view.concerns)}")
    # A deleted group is stable when its last instance is gone; on-demand ones stay.
    remaining = Counter(
        each["group"] for each in all_instances if not each["on_demand"] or each["state"] in overview.LEAVING
    )
    for name, number in sorted(remaining.items()):
        if all(each.key != name for each in found) and (not wanted or name in wanted):
            state.names.append(name)
            state.left += number
            state.unstable.append(
                f"{name} is not configured (deleted, or held), it still has {count(number, 'instance')}"
            )
    return state
