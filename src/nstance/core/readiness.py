"""Readiness: the VM runs, the agent is connected, its files are installed and its checks pass.

An instance that never became ready is removed at once, like one that never registered: it serves nothing, and the group
tries again with its back-off. One that was ready before is replaced first. A cause that all share (a database, a wrong
check) must not empty the group, so many unhealthy instances at once are replaced one by one. Where the files cannot be
rendered, nothing is replaced: a new instance would not get them either.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nstance.core import creating, leaving, rollout
from nstance.core.draft import Draft
from nstance.model.decision import ReasonCode
from nstance.model.events import ReadinessReported
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, Instance, State

MASS_UNHEALTHY_MIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """`desired_hash`: of the file set that the instance should have, empty if not known yet. `installed_hash`: of the set
    that is installed and whose on-receive command succeeded."""

    desired_hash: str
    installed_hash: str
    blocked: str = ""  # why the set cannot be rendered
    problem: str = ""  # the agent's own message about its files


def assess(
    id: InstanceId, files: FileStatus, *, checks: Iterable[str], results: Mapping[str, bool]
) -> ReadinessReported:
    """`checks`: the names in its template; `results`: what the agent reported of them."""
    names = sorted(checks)
    is_passing = all(results.get(name) for name in names)
    return ReadinessReported(
        id,
        files=bool(files.desired_hash) and files.installed_hash == files.desired_hash,
        failing=tuple(name for name in names if results.get(name) is False),
        pending=tuple(name for name in names if name not in results),
        blocked=files.blocked,
        problem=files.problem,
        serving=bool(files.blocked and files.installed_hash) and is_passing,
    )


def explain(report: ReadinessReported) -> str:
    """Why the instance is not ready, for users; empty if it is."""
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


def check_readiness(draft: Draft) -> None:
    """Find instances that are unhealthy although their agents respond, and remove those that never became ready."""
    needs_attention = draft.needs_attention()
    draft.wake(draft.triage.unready_until)
    found: list[tuple[Instance, str]] = []
    for instance in needs_attention:
        agent = draft.observation(instance.id).agent
        if instance.state is not State.RUNNING or agent.ready or not draft.is_responsive(instance.id):
            continue
        if not draft.is_due(draft.unready_deadline(instance)):
            continue
        if (why := explain_unhealthy(draft, instance)) is not None:
            found.append((instance, why))
        elif agent.blocked:
            rollout.halt_if_blocked(draft, instance)
    held = _hold_back(draft, [instance for instance, _ in found])
    draft.unhealthy = frozenset(instance.id for instance, _ in found) - held
    if not draft.can_delete:
        return
    for instance, why in found:
        if instance.id in held or not (instance.ready_at is None or instance.on_demand):
            continue
        leaving.remove_instance(draft, instance, Cause.UNHEALTHY, why)
        if instance.ready_at is None:
            creating.count_startup_failure(draft, instance, why)


def explain_unhealthy(draft: Draft, instance: Instance) -> str | None:
    """Why an instance whose agent responds must be replaced for not being ready; None: it need not be."""
    agent = draft.observation(instance.id).agent
    if agent.ready or agent.blocked or instance.suspect or draft.view.mass_silence:
        return None
    if not draft.is_responsive(instance.id) or draft.now < draft.unready_deadline(instance):
        return None
    why = agent.not_ready or "its agent has not reported"
    if agent.failing_since is not None and draft.now >= agent.failing_since + draft.limits.unhealthy_after:
        return f"unhealthy for {draft.now - agent.failing_since:.0f} s: {why}"
    return f"not ready {draft.now - (instance.registered or 0.0):.0f} s after registration: {why}"


def _hold_back(draft: Draft, unhealthy: list[Instance]) -> frozenset[InstanceId]:
    """The instances that have to wait because too many that may have served are unhealthy at once. The cause is probably
    shared, so they are replaced one by one, each when nothing else is under way, until none is left."""
    since = draft.view.listening_since
    served = [m.id for m in unhealthy if m.counts and (m.ready_at is not None or (m.registered or 0.0) < since)]
    if len(served) < (1 if draft.trend.unready else MASS_UNHEALTHY_MIN):
        draft.trend = replace(draft.trend, unready=False)
        return frozenset()
    capacity = draft.capacity()
    if not draft.trend.unready:
        if len(served) * 3 <= len(capacity):
            return frozenset()
        draft.trend = replace(draft.trend, unready=True)
        message = f"{len(served)} of {len(capacity)} instances are unhealthy at once: replacing them one at a time"
        draft.add_reason(ReasonCode.NOT_READY, message)
    known = frozenset(served)
    starting = any(m.ready_at is None and m.id not in known for m in capacity)
    return known if starting or draft.count_existing() > len(capacity) else known - {served[0]}
