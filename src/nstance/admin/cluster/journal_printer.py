"""Prints a journal slot as lines for people, or as one document for programs."""

from collections.abc import Iterator

import click

from nstance.admin import output
from nstance.admin.cluster.journal import DamagedSlot, JournalSlot
from nstance.model.decision import TROUBLE
from nstance.model.ids import InstanceId
from nstance.model.instance import Change, Put, Remove, State
from nstance.objects import slots

_PROBLEMS = frozenset(code.value for code in TROUBLE)


class Printer:
    """Remembers states, so that a change shows the previous one."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._states: dict[InstanceId, str] = {}

    def text(self, found: JournalSlot) -> str:
        document = self._document(found)
        if self._form == "table":
            return "".join(f"{line}\n" for line in _lines(document))
        return f"{found.number}\n" if self._form == "name" else output.part(document, self._form)

    def _document(self, found: JournalSlot) -> dict[str, object]:
        if isinstance(found, DamagedSlot):
            return {"slot": found.number, "damaged": found.message}
        return {
            "slot": found.number,
            "time": output.timestamp(found.at),
            "epoch": found.epoch,
            "entries": [self._entry(entry) for entry in found.entries],
        }

    def _entry(self, entry: slots.Entry) -> dict[str, object]:
        return {
            "id": entry.id,
            "reasons": [
                {
                    "code": reason.code,
                    "message": reason.message,
                    "instance": reason.instance,
                    "group": f"{reason.tenant}/{reason.group}" if reason.group else reason.tenant or None,
                }
                for reason in entry.reason
            ],
            "changes": [self._change(change) for change in entry.changes],
        }

    def _change(self, change: Change) -> dict[str, object]:
        match change:
            case Put(instance):
                was = self._states.get(instance.id)
                self._states[instance.id] = instance.state.value
                return {
                    "instance": instance.id,
                    "group": str(instance.key),
                    "state": instance.state.value,
                    "was": was,
                    "cause": _cause(change),
                }
            case Remove(id):
                return {
                    "instance": id,
                    "group": None,
                    "state": "removed",
                    "was": self._states.pop(id, None),
                    "cause": None,
                }


def _cause(change: Put) -> str | None:
    instance = change.instance
    if instance.state is State.DRAINING and instance.drain is not None:
        return instance.drain.cause.value
    return None if instance.cause is None else instance.cause.value


def _lines(document: dict[str, object]) -> Iterator[str]:
    slot = click.style(f"slot {document['slot']}", bold=True)
    if "damaged" in document:
        yield f"{slot}  {click.style('DAMAGED', fg='red', bold=True)}  {output.escape(str(document['damaged']))}"
        return
    entries = document["entries"]
    assert isinstance(entries, list)
    fence = "" if entries else "  a new leader starts"
    yield f"{slot}  {document['time']}  epoch {document['epoch']}{fence}"
    for entry in entries:
        for reason in entry["reasons"]:
            code = click.style(output.escape(reason["code"]), fg="yellow" if reason["code"] in _PROBLEMS else "green")
            subject = reason["instance"] or reason["group"]
            suffix = f"  ({output.escape(subject)})" if subject else ""
            yield f"  {code}: {output.escape(reason['message'])}{suffix}"
        for change in entry["changes"]:
            group = f"  {output.escape(change['group'])}" if change["group"] else ""
            before = f"{change['was']} → " if change["was"] not in (None, change["state"]) else ""
            cause = f" ({change['cause']})" if change["cause"] else ""
            yield f"    {output.escape(change['instance'])}{group}  {before}{change['state']}{cause}"
