"""Rollouts of one shard's groups: their history, and what is left of them."""

from collections.abc import Sequence
from typing import Any

from nstance.admin import output
from nstance.admin.client import Client
from nstance.admin.shard import groups, records


async def history(client: Client, name: str) -> Sequence[Any]:
    """Newest first. Raises Refusal."""
    await groups.find(client, name)
    found: Sequence[Any] = (await client.call("ListRevisions", key=name)).revisions
    return found


def note(plan: Any) -> None:
    """What is left of a rollout, in a sentence."""
    if not plan.instances:
        return
    pace = "one after the other" if plan.order == "serial" else f"at most {plan.at_once} at a time"
    length = f"about {records.age(plan.estimate_ms / 1000)}" if plan.estimate_ms else "unknown (nothing measured yet)"
    output.note(f"rollout: {plan.instances} to be replaced, {pace}; duration: {length}")
    if plan.held:
        output.note(f"the rollout is {plan.held}")
