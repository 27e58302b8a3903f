"""A journal slot as lines for people, or as one document for programs."""

import json
from collections.abc import Iterator

import click

from nstance.admin import output
from nstance.admin.cluster.journal import Found, Trouble
from nstance.model.decision import TROUBLE
from nstance.model.ids import InstanceId
from nstance.model.instance import Change, Put, Remove, State
from nstance.objects import slots

_BAD = frozenset(code.value for code in TROUBLE)


class Printer:
    """Remembers states, so that a change shows where an instance came from."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._states: dict[InstanceId, str] = {}

    def text(self, found: Found) -> str:
        document = self._document(found)
        if self._form == "json":
            return json.dumps(document, ensure_ascii=False) + "\n"  # one line each: a journal may be followed
        if self._form == "yaml":
            return "---\n" + output.document(document, "yaml")
        return "".join(f"{line}\n" for line in _lines(document))

    def _document(self, found: Found) -> dict[str, object]:
        if isinstance(found, Trouble):
            return {"slot": found.number, "damaged": found.message}
        return {
            "slot": found.number,
            "time": output.when(found.at),
            "epoch": found.epoch,
            "entries": [self._entry(entry) for entry in found.entries],
        }

    def _entry(self, entry: slots.Entry) -> dict[str, object]:
        return {
            "id": entry.id,
            "reasons": [
                {
                    "code": why.code,
                    "message": why.message,
                    "instance": why.instance,
                    "group": f"{why.tenant}/{why.group}" if why.group else why.tenant or None,
                }
                for why in entry.reason
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
        yield f"{slot}  {click.style('DAMAGED', fg='red', bold=True)}  {output.plain(str(document['damaged']))}"
        return
    entries = document["entries"]
    assert isinstance(entries, list)
    fence = "" if entries else "  a new leader begins"
    yield f"{slot}  {document['time']}  epoch {document['epoch']}{fence}"
    for entry in entries:
        for why in entry["reasons"]:
            code = click.style(output.plain(why["code"]), fg="yellow" if why["code"] in _BAD else "green")
            named = why["instance"] or why["group"]
            about = f"  ({output.plain(named)})" if named else ""
            yield f"  {code}: {output.plain(why['message'])}{about}"
        for change in entry["changes"]:
            group = f"  {output.plain(change['group'])}" if change["group"] else ""
            came = f"{change['was']} → " if change["was"] not in (None, change["state"]) else ""
            cause = f" ({change['cause']})" if change["cause"] else ""
            yield f"    {output.plain(change['instance'])}{group}  {came}{change['state']}{cause}"
