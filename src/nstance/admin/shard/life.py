"""The life of an instance, from its intent to its deletion: each step with its time, its reason and the time since the
step before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nstance.admin.client import Client
from nstance.admin.shard import records
from nstance.admin.shard.event_printer import CONSOLE
from nstance.admin.shard.records import Record, age
from nstance.admin.shard.shapes import timestamp_ms
from nstance.model.ids import ShardId

MAX_EVENTS = 500
INDENT = 26  # of what follows the times
ENDED = ("deleted", "failed")


@dataclass(frozen=True, slots=True)
class Life:
    status: Any
    events: Sequence[Any]


async def load(client: Client, id: str) -> Life:
    status = await client.call("GetInstanceStatus", instance_id=id)
    events = (await client.call("ListEvents", instance_id=id, limit=MAX_EVENTS)).events
    return Life(status, events)


def record(shard: ShardId, life: Life) -> Record:
    return {**records.instance_with_report(shard, life.status), "timeline": timeline(life)}


def timeline(life: Life) -> list[Record]:
    """Oldest first. Times that the status has and no event has become steps of their own."""
    status = life.status
    known = [
        (status.created_unix_ms, "intent", "the decision to create it is in the journal"),
        (status.registered_unix_ms, "registered", "its agent has registered"),
        (status.ready_unix_ms, "ready", "ready for the first time"),
    ]
    reasons = {each.reason for each in life.events}
    steps = [(at, number, step, text) for number, (at, step, text) in enumerate(known) if at and step not in reasons]
    steps += [
        (each.time_unix_ms, len(known) + number, each.reason, each.message)
        for number, each in enumerate(life.events)
        if not each.message.startswith(CONSOLE)
    ]
    steps.sort()
    found, before = [], steps[0][0] if steps else 0
    for at, _, step, text in steps:
        found.append({"time": timestamp_ms(at), "after_ms": at - before, "step": step, "message": text})
        before = at
    return found


def timeline_lines(steps: Iterable[Record], *, state: str, now: float) -> list[str]:
    """`10:08:44Z  +1.2s  registered  its agent has registered`."""
    steps = list(steps)
    width = max((len(each["step"]) for each in steps), default=0)
    lines = []
    for each in steps:
        gap = f"+{short(each['after_ms'] / 1000)}" if each is not steps[0] else ""
        clock = f"{each['time'][5:10]} {each['time'][11:19]}Z"
        lines.append(f"{clock}  {gap:>7}  {each['step']:<{width}}  {each['message']}")
    if steps and state not in ENDED:
        lines.append(f"{'now':<15}  {'+' + records.age_since(steps[-1]['time'], now):>7}  {state}")
    return lines


def short(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 10 else age(seconds)


def usage(report: Record | None) -> str | None:
    """`load 0.42, CPU 3 %, memory 41 %, disk 12 %, up 3h2m`."""
    if report is None:
        return None
    percents = (("CPU", "cpu_percent"), ("memory", "memory_percent"), ("disk", "disk_percent"))
    shown = [f"load {report['load1']:.2f}", *(f"{label} {report[key]:.0f} %" for label, key in percents)]
    return ", ".join([*shown, f"up {age(report['uptime_seconds'])}"])


def lines(found: Record) -> Record:
    """For `instance show`: nested values as text, the timeline apart."""
    report = found["report"]
    files = [
        f"{file['name']}" + (f" (certificate until {file['expires'][:19]}Z)" if file["expires"] else "")
        for file in (report or {}).get("files", ())
    ]
    shown = {key: value for key, value in records.instance_lines(found).items() if key not in ("timeline", "report")}
    agent = {"agent_version": report["version"], "files": files, "files_error": report["files_error"]} if report else {}
    return {**shown, "revision": records.short(found["revision"] or ""), "usage": usage(report), **agent}
