"""Noticing trouble: what silence, notices and the provider's word mean for an instance.

Silence alone proves nothing: the provider is asked, and a failed answer is never read as "gone". A silent instance whose
VM runs is suspect first (its replacement starts), dead later (it goes), and forgiven if it comes back in between. After
a change of leaders silence counts from the moment this leader began to listen.
"""

from nstance.core import leaving
from nstance.core.draft import Draft, drifted
from nstance.model.decision import Code, Facts
from nstance.model.events import NoticeKind, VmState
from nstance.model.instance import Cause, Instance, State

CHECK_TIMES = (0.0, 1.0, 2.0, 4.0)  # after a connection was lost: seconds at which the provider is asked
CHECK_AGAIN = 10.0


def judge(draft: Draft) -> None:
    for instance in list(draft.members.values()):
        if instance.state in (State.PENDING, State.STARTING, State.RUNNING):
            _judge(draft, instance)


def _judge(draft: Draft, instance: Instance) -> None:
    facts = draft.facts(instance.id)
    if draft.not_running(instance):
        if not draft.view.listed:
            return  # the listing that every term begins with comes first
        message = f"the provider says that its VM is {facts.vm.value}"
        draft.reason(Code.GONE, message, instance.id)
        leaving.delete(draft, instance, Cause.GONE, message)
        return
    if facts.vm is VmState.ABSENT and facts.absent_since is not None:
        _ask_at(draft, instance, draft.now + CHECK_AGAIN)
    if instance.state is not State.RUNNING:
        return
    if facts.notice is not None and _heed(draft, instance, facts):
        return
    _silence(draft, instance, facts)


def _heed(draft: Draft, instance: Instance, facts: Facts) -> bool:
    """Act on a notice; says whether the instance leaves."""
    if facts.notice is NoticeKind.SPOT:
        message = "the provider is about to take its VM back"
        draft.reason(Code.SPOT, message, instance.id)
        leaving.leave(draft, instance, Cause.SPOT, message, deadline=facts.notice_deadline)
        return True
    if facts.notice is NoticeKind.SHUTDOWN:
        due = facts.notice_at + draft.policy.shutdown_grace
        if draft.now < due:
            draft.wake(due)
            _ask_at(draft, instance, facts.notice_at + 1.0)
            return False
        message = f"its VM announced a shutdown {draft.now - facts.notice_at:.0f} s ago"
        draft.reason(Code.SHUTDOWN, message, instance.id)
        leaving.leave(draft, instance, Cause.SHUTDOWN, message)
        return True
    return False


def _silence(draft: Draft, instance: Instance, facts: Facts) -> None:
    suspect_at, dead_at = limits(draft, facts)
    if facts.connected and draft.now < facts.heard + draft.policy.suspect_after:
        if instance.suspect:
            draft.change(instance, suspect=False)
            draft.reason(Code.RECOVERED, "its agent is back", instance.id)
        draft.wake(facts.heard + draft.policy.suspect_after)
        return
    if facts.lost is not None and facts.checks < len(CHECK_TIMES):
        _ask_at(draft, instance, facts.lost + CHECK_TIMES[facts.checks])
    if draft.now < suspect_at:
        draft.wake(suspect_at)
        return
    if facts.vm is not VmState.RUNNING or facts.vm_at is None or facts.vm_at < facts.heard:
        # Only the provider's word "it runs", given after the last sign of life, makes an instance suspect.
        _ask_at(draft, instance, draft.now if not facts.checks else draft.now + CHECK_AGAIN)
        return
    if draft.view.mass_silence:
        draft.wake(draft.now + CHECK_AGAIN)
        return
    if not instance.suspect:
        silent = draft.now - facts.heard
        instance = draft.change(instance, suspect=True)
        draft.reason(Code.SUSPECT, f"silent for {silent:.0f} s although its VM runs", instance.id)
    if draft.now < dead_at:
        draft.wake(dead_at)
        return
    if facts.vm_at < dead_at:
        _ask_at(draft, instance, draft.now)  # no deletion on an old answer
        return
    if instance.on_demand or _replaced(draft, instance):
        message = f"silent for {draft.now - facts.heard:.0f} s although its VM runs"
        draft.reason(Code.UNHEALTHY, message, instance.id)
        leaving.leave(draft, instance, Cause.UNHEALTHY, message)


def limits(draft: Draft, facts: Facts) -> tuple[float, float]:
    """When silence makes suspect, and when dead."""
    policy = draft.policy
    if not facts.met:
        # It has not connected since this leader took over: it gets the time that a whole fleet needs to reconnect.
        patience = max(policy.suspect_after, draft.view.reconnect_grace)
        heard = max(facts.heard, draft.view.listening_since)
        return heard + patience, heard + max(policy.dead_after, patience)
    if facts.restarting:
        return facts.heard + policy.dead_after, facts.heard + policy.dead_after
    return facts.heard + policy.suspect_after, facts.heard + policy.dead_after


def _replaced(draft: Draft, instance: Instance) -> bool:
    """A VM that still runs goes only after its replacement was made."""
    return any(m.replaces == instance.id and m.state in (State.STARTING, State.RUNNING) for m in draft.members.values())


def _ask_at(draft: Draft, instance: Instance, at: float) -> None:
    facts = draft.facts(instance.id)
    if facts.checking:
        return
    if facts.check_due is None or at < facts.check_due:
        draft.learn(instance.id, check_due=at)


def needs_replacement(draft: Draft, instance: Instance) -> Cause | None:
    """Why a running instance needs a replacement although it still holds its place."""
    if instance.state is not State.RUNNING or instance.on_demand:
        return None
    if instance.suspect:
        return Cause.UNHEALTHY
    age = draft.policy.forced_age
    if age is not None:
        if draft.now >= instance.created + age:
            return Cause.FORCED_EXPIRY
        draft.wake(instance.created + age)
    return None


def is_sound(draft: Draft, instance: Instance) -> bool:
    """Running, heard of, current: worth keeping."""
    return (
        instance.state is State.RUNNING
        and not instance.suspect
        and not drifted(instance, draft.wish)
        and needs_replacement(draft, instance) is None
    )
