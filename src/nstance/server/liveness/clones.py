"""Two live agents with one identity: somebody copied an identity directory, or a whole VM.

Both have the same certificate, so they differ only in what they report. An agent draws a boot ID when it starts and never
uses an older one again, and it has one connection at a time. Two agents are therefore certain when, on a connection that
began after another agent had reported, an earlier boot ID comes back or the sequence of the same boot goes back. A new
boot ID alone proves nothing: that is a restart. The trap: reports of a dying agent that arrive late. They come on a
connection that is older than its successor's report.
"""

from dataclasses import dataclass, field

from nstance.model.ids import InstanceId

REMEMBERED_SECONDS = 600.0  # after the last evidence
MAX_FORMER = 8  # boot IDs of an instance


@dataclass(slots=True)
class _Boots:
    boot: str
    address: str
    since: float  # when this boot first reported, or came back
    sequence: int = 0  # the highest one of this boot
    last_seen: float = 0.0  # when it came
    former: dict[str, str] = field(default_factory=dict)  # earlier boot IDs, and where they reported from


@dataclass(frozen=True, slots=True)
class Report:
    """What of a health report tells one agent from another; times are monotonic."""

    boot: str
    sequence: int
    address: str
    connected_at: float
    at: float


class Clones:
    def __init__(self) -> None:
        self._boots: dict[InstanceId, _Boots] = {}
        self._seen: dict[InstanceId, float] = {}

    def evidence(self, id: InstanceId, report: Report) -> str:
        """Take in a report. The address of the other agent if it proves that there are two, else empty."""
        known = self._boots.get(id)
        if not report.boot:
            return ""
        if known is None:
            self._boots[id] = _Boots(report.boot, report.address, report.at, report.sequence, report.at)
            return ""
        if report.boot == known.boot:
            other = known.address if report.sequence < known.sequence and report.connected_at > known.last_seen else ""
            known.sequence, known.last_seen, known.address = report.sequence, report.at, report.address
        else:
            other = known.address if report.boot in known.former and report.connected_at > known.since else ""
            former = known.former
            former.pop(report.boot, None)
            former[known.boot] = known.address
            while len(former) > MAX_FORMER:
                del former[next(iter(former))]
            self._boots[id] = _Boots(report.boot, report.address, report.at, report.sequence, report.at, former)
        if other:
            self._seen[id] = report.at
        return other

    def is_seen(self, id: InstanceId, now: float) -> bool:
        """There was evidence lately."""
        return now < self._seen.get(id, float("-inf")) + REMEMBERED_SECONDS

    def forget(self, id: InstanceId) -> None:
        self._boots.pop(id, None)
        self._seen.pop(id, None)
