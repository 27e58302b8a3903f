"""The fleet as `top` draws it: a copy of what the feeds of all shards have, sorted and filtered. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nstance.admin.shard import records
from nstance.admin.shard.records import Record

# From what needs a person most to what needs nobody. Each state has a sign and an ASCII sign, so that none is shown by
# color alone.
STATES = {
    "failed": ("bad", "✗", "X"),
    "unresponsive": ("bad", "!", "!"),
    "not ready": ("warn", "▲", "?"),
    "pending": ("info", "·", "."),
    "starting": ("info", "○", "o"),
    "draining": ("leave", "▽", "v"),
    "deleting": ("leave", "×", "x"),
    "outdated": ("warn", "◐", "~"),
    "ready": ("good", "●", "#"),
}
ORDER = {state: number for number, state in enumerate(STATES)}

Key = tuple[str, str]  # shard and group


@dataclass(frozen=True, slots=True)
class Detail:
    """The opened instance, as its shard answered last."""

    record: Record | None = None  # as of `life.record`
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    shards: Sequence[Record] = ()
    groups: Sequence[Record] = ()
    instances: Sequence[Record] = ()
    events: Sequence[Record] = ()  # oldest first
    alarms: Sequence[Record] = ()
    detail: Detail = field(default_factory=Detail)
    now: float = 0.0

    @property
    def several(self) -> bool:
        return len(self.shards) > 1


def state_of(instance: Record, revision: str | None) -> str:
    """`revision`: of its group."""
    state = str(instance["state"])
    if state != "running":
        return state if state in STATES else "pending"
    if instance.get("suspect"):
        return "unresponsive"
    if not instance.get("ready"):
        return "not ready"
    own = instance.get("revision")
    return "outdated" if revision and own and own != revision and not instance.get("on_demand") else "ready"


def revisions(fleet: Fleet) -> dict[Key, str]:
    return {(each["shard"], each["group"]): records.short(each["infra_hash"] or "") for each in fleet.groups}


def counts(fleet: Fleet) -> dict[Key, Counter[str]]:
    """Instances of each group by state, also of groups that are not configured."""
    current = revisions(fleet)
    found: dict[Key, Counter[str]] = {key: Counter() for key in current}
    for each in fleet.instances:
        key = each["shard"], each["group"]
        found.setdefault(key, Counter())[state_of(each, current.get(key))] += 1
    return found


def cells(states: Mapping[str, int], width: int) -> list[str]:
    """A state for each cell: one cell for each instance. If there are more instances than cells, each state gets its
    share, and at least one cell while there are enough."""
    present = [(state, states[state]) for state in reversed(STATES) if states.get(state)]
    total = sum(number for _, number in present)
    if total <= width:
        return [state for state, number in present for _ in range(number)]
    if width < len(present):  # the worst ones
        return [state for state, _ in present[len(present) - width :]]
    shares = {state: max(1, number * width // total) for state, number in present}
    while sum(shares.values()) > width:
        largest = max(shares, key=lambda state: shares[state])
        shares[largest] -= 1
    shares[max(shares, key=lambda state: states[state])] += width - sum(shares.values())
    return [state for state, share in shares.items() for _ in range(share)]


def is_calm(group: Record) -> bool:
    """Nothing of the group needs attention."""
    rollout = group["rollout"]
    is_rolling = rollout is not None and (rollout["outcome"] in ("paused", "halted") or bool(rollout["outdated"]))
    is_odd = group["blocked"] or group["last_error"] or group["paused"] or group["rolled_back_from"]
    return not (is_odd or is_rolling or group["ready_size"] != group["size"] or group["actual_size"] != group["size"])


def group_rows(fleet: Fleet, text: str, sort: str, *, is_reversed: bool) -> list[Record]:
    order: Callable[[Record], tuple[Any, ...]] = {
        "name": lambda each: (),
        "attention": lambda each: (is_calm(each),),
        "size": lambda each: (-each["size"],),
        "missing": lambda each: (each["ready_size"] - each["size"],),
    }[sort]
    found = [each for each in fleet.groups if _has(text, each["shard"], each["group"], each["template"])]
    found.sort(key=lambda each: (*order(each), each["shard"], each["group"]), reverse=is_reversed)
    return found


def instance_rows(
    fleet: Fleet, text: str, sort: str, *, is_reversed: bool, group: Key | None = None
) -> list[tuple[str, Record]]:
    """With the state of each."""
    current = revisions(fleet)
    found = []
    for each in fleet.instances:
        key = each["shard"], each["group"]
        if group is not None and key != group:
            continue
        state = state_of(each, current.get(key))
        if not text or _has(text, each["shard"], each["group"], each["id"], state, note(each)):
            found.append((state, each))
    order: Callable[[str, Record], tuple[Any, ...]] = {
        "attention": lambda state, each: (ORDER[state], -each["created"]),
        "age": lambda state, each: (-each["created"],),
        "group": lambda state, each: (each["shard"], each["group"]),
        "state": lambda state, each: (state,),
        "id": lambda state, each: (),
    }[sort]
    found.sort(key=lambda pair: (*order(*pair), pair[1]["id"]), reverse=is_reversed)
    return found


def note(instance: Record) -> str:
    """Why it leaves, or why it is not ready."""
    if instance["state"] == "running" and instance.get("ready"):
        return str(instance.get("reason") or "")
    return str(instance.get("reason") or instance.get("not_ready") or "")


def event_rows(fleet: Fleet, text: str, group: Key | None = None) -> list[Record]:
    return [
        each
        for each in fleet.events
        if (group is None or (each["shard"], each["group"]) == group)
        and _has(text, each["shard"], each["group"], each["instance_id"], each["reason"], each["message"])
    ]


def _has(text: str, *values: str) -> bool:
    """Every word of the filter is in one of the values."""
    return all(any(word in value.lower() for value in values) for word in text.lower().split())
