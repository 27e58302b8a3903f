"""The pages of `top` about one group, about one instance, and about the keys. Pure."""

from collections.abc import Callable, Iterator

from nstance.admin.shard import life, records
from nstance.admin.top import model
from nstance.admin.top.lines import GAP, Line, line
from nstance.admin.top.model import STATES, Fleet

LABEL = 12

KEYS = (
    ("1 2 3, Tab", "groups, instances, events"),
    ("up down, j k", "choose a row; PgUp, PgDn, Home and End go further"),
    ("Enter", "open the group or the instance"),
    ("Esc", "go back"),
    ("/", "filter by words in names, IDs, states, reasons and messages"),
    ("s S", "sort by the next or the previous column"),
    ("r", "reverse the order"),
    ("q, Ctrl-C", "quit"),
)


def _fact(label: str, value: str | None, style: str = "") -> Iterator[Line]:
    if value:
        yield line((f"{label:<{LABEL}}", "dim"), (value, style))


def group(fleet: Fleet, shard: str, name: str) -> list[Line]:
    """The facts about a group, then a blank line."""
    found = next((each for each in fleet.groups if (each["shard"], each["group"]) == (shard, name)), None)
    title = line((name, "bold"), (f"{GAP}in {shard}", "dim"))
    if found is None:
        return [title, line(("it is not configured any more", "warn")), line()]
    shown = records.group_lines(found)
    sizes = f"{found['ready_size']} ready of {found['size']}, {found['actual_size']} exist"
    template = ", ".join(filter(None, (found["template"], *(found["instance_types"] or [found["instance_type"]]))))
    lines = [title]
    lines += _fact("size", f"{sizes} (from {shown['size_source']})", "" if model.is_calm(found) else "warn")
    lines += _fact("template", template)
    lines += _fact("rollout", shown["rollout"])
    lines += _fact("cost", shown["cost"])
    lines += _fact("paused", "yes: nothing is created, replaced or deleted" if found["paused"] else None, "warn")
    for reason in found["blocked"]:
        lines += _fact("blocked", reason, "bad")
    if found["last_error"] not in (None, *found["blocked"]):
        lines += _fact("error", found["last_error"], "bad")
    for offer in found["exhausted_offers"][:2]:
        label = "server errors" if offer["server_error"] else "no capacity"
        lines += _fact(label, records.exhausted_offer_line(offer), "warn")
    return [*lines, line()]


def instance(fleet: Fleet, subject: tuple[str, ...], sign: Callable[[str], str]) -> list[Line]:
    shard, id = subject
    title = line((id, "bold"), (f"{GAP}in {shard}", "dim"))
    found, problem = fleet.detail.record, fleet.detail.problem
    if found is None or found["instance_id"] != id:
        return [title, line(), line((problem, "bad") if problem else ("waiting for an answer", "dim"))]
    revision = model.revisions(fleet).get((shard, found["group"]))
    row = {**found, "revision": records.short(found["revision"] or "")}
    state = model.state_of(row, revision)
    lines = [title, line()]
    lines += _fact("state", f"{sign(state)} {state}", STATES[state][0])
    lines += _fact("not ready", found["not_ready"], "warn")
    lines += _fact("leaves", ", ".join(filter(None, (found["reason"], found["message"]))) or None, "warn")
    lines += _fact("usage", life.usage(found["report"]) or "known while its agent is connected")
    lines += _fact("group", found["group"])
    addresses = ", ".join(filter(None, (found["hostname"], found["ipv4"], found["ipv6"])))
    lines += _fact("address", addresses)
    kind = " ".join(filter(None, (found["market"], found["instance_type"])))
    lines += _fact("VM", ", ".join(filter(None, (found["provider_id"], kind, found["subnet"], found["vm_status"]))))
    lines += _fact("replaces", found["replaces"])
    for check in records.instance_lines(found)["checks"]:
        lines += _fact("check", check, "" if " passing" in check else "bad")
    lines += [line(), line(("life", "bold"))]
    lines += [line(text) for text in life.timeline_lines(found["timeline"], state=found["state"], now=fleet.now)]
    return [*lines, *(() if problem is None else (line(), line((problem, "warn"))))]


def help(sign: Callable[[str], str]) -> list[Line]:
    lines = [line(("keys", "bold"))]
    lines += [line((f"  {keys:<14}", "bold"), text) for keys, text in KEYS]
    lines += [line(), line(("signs", "bold"))]
    lines += [line("  ", (f"{sign(state):<2}", STATES[state][0]), state) for state in reversed(STATES)]
    return [*lines, line(), line(("every instance is one sign; a group with too many shows shares", "dim"))]
