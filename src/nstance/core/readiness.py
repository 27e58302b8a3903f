"""When an instance is ready: its VM runs, its agent is connected, its files are installed and its checks pass. And what
follows when it is not, for too long.

One that never became ready goes at once, like one that never registered: it serves nobody, and the group tries again
under its back-off. One that was ready before and fails its checks is replaced first. The trap: a cause that all share (a
database, a wrong check) must not empty the group, so many at once are replaced one by one; and where the files cannot be
made, a replacement would not help either.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from nstance.core import creating, leaving, rollout
from nstance.core.draft import Draft
from nstance.model.decision import ReasonCode
from nstance.model.events import ReadinessReported
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, Instance, State

MASS_AT_LEAST = 3


def assess(
    id: InstanceId,
    *,
    wanted_hash: str,
    installed_hash: str,
    checks: Iterable[str],
    results: Mapping[str, bool],
    blocked: str = "",
    problem: str = "",
) -> ReadinessReported:
    """`wanted_hash`: of the file set that the instance should have, empty if that is not known yet. `installed_hash`: of
    the set that is installed and whose on-receive command has succeeded. `checks`: the names that its template asks for;
    `results`: what the agent reports of them. `problem`: what it says is wrong with its files."""
    names = sorted(checks)
    return ReadinessReported(
        id,
        files=bool(wanted_hash) and installed_hash == wanted_hash,
        failing=tuple(name for name in names if results.get(name) is False),
        pending=tuple(name for name in names if name not in results),
        blocked=blocked,
        problem=problem,
    )


def explain(report: ReadinessReported) -> str:
    """Why it is not ready, for people; empty if it is."""
    parts = []
    if report.blocked:
        parts.append(f"its files cannot be rendered: {report.blocked}")
    elif not report.files:
        parts.append("its files are not installed yet")
    if report.failing:
        parts.append(f"failing checks: {', '.join(report.failing)}")
    if report.pending:
        parts.append(f"checks without a result yet: {', '.join(report.pending)}")
    if parts and report.problem:
        parts.append(report.problem)
    return "; ".join(parts)


def judge(draft: Draft) -> None:
    """Find those that are unhealthy although their agents speak, and let those go that never became ready."""
    needs_attention = draft.needs_attention()
    draft.wake(draft.unready_until)
    found: list[tuple[Instance, str]] = []
    for instance in needs_attention:
        facts = draft.facts(instance.id)
        if instance.state is not State.RUNNING or facts.ready or not draft.audible(instance.id):
            continue
        due = draft.unready_due(instance)
        if draft.now < due:
            draft.wake(due)
        elif (why := unhealthy(draft, instance)) is not None:
            found.append((instance, why))
        elif facts.blocked:
            rollout.judge_blocked(draft, instance)
    held = _held(draft, [instance for instance, _ in found])
    draft.unhealthy = {instance.id for instance, _ in found} - held
    if not draft.may_delete:
        return
    for instance, why in found:
        if instance.id in held or not (instance.ready_at is None or instance.on_demand):
            continue
        draft.reason(ReasonCode.UNHEALTHY, why, instance.id)
        leaving.leave(draft, instance, Cause.UNHEALTHY, why)
        if instance.ready_at is None:
            creating.did_not_come_up(draft, instance, why)


def unhealthy(draft: Draft, instance: Instance) -> str | None:
    """Why one whose agent speaks is to be replaced, because it is not ready."""
    facts = draft.facts(instance.id)
    if facts.ready or facts.blocked or instance.suspect or draft.view.mass_silence or not draft.audible(instance.id):
        return None
    if draft.now < draft.unready_due(instance):
        return None
    why = facts.not_ready or "its agent has not reported"
    if facts.failing_since is not None and draft.now >= facts.failing_since + draft.unhealthy_after:
        return f"unhealthy for {draft.now - facts.failing_since:.0f} s: {why}"
    return f"not ready {draft.now - (instance.registered or 0.0):.0f} s after it registered: {why}"


def _held(draft: Draft, unhealthy: list[Instance]) -> set[InstanceId]:
    """Too many at once of those that may have served: the cause is probably shared, and new ones would fare no better. So
    they go one by one, the next when nothing is under way any more, until none is left."""
    since = draft.view.listening_since
    served = [m.id for m in unhealthy if m.counts and (m.ready_at is not None or (m.registered or 0.0) < since)]
    if len(served) < (1 if draft.trend.unready else MASS_AT_LEAST):
        draft.trend = replace(draft.trend, unready=False)
        return set()
    capacity = draft.capacity()
    if not draft.trend.unready:
        if len(served) * 3 <= len(capacity):
            return set()
        draft.trend = replace(draft.trend, unready=True)
        message = f"{len(served)} of {len(capacity)} instances are unhealthy at once: they are replaced one at a time"
        draft.reason(ReasonCode.NOT_READY, message)
    known = set(served)
    coming = any(m.ready_at is None and m.id not in known for m in capacity)
    return set(served if coming or draft.existing() > len(capacity) else served[1:])
