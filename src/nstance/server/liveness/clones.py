"""Detects two live agents with one identity: somebody copied an identity directory or a whole VM.

Both have the same certificate and differ only in their reports. An agent chooses a boot ID when it starts, never returns
to an older one, and has one connection at a time. So there are two agents if, on a connection that began after another
agent had reported, an earlier boot ID returns or the sequence of the same boot goes back. A new boot ID alone is a
restart. The trap: late reports of an agent that has ended; they come on a connection that is older than the other report.
"""

from dataclasses import dataclass, field

from nstance.model.ids import InstanceId

REMEMBERED_SECONDS = 600.0  # after the last evidence
MAX_FORMER_BOOTS = 8  # of an instance


@dataclass(slots=True)
class _Boots:
    boot: str
    address: str
    since: float  # when this boot first reported, or returned
    sequence: int = 0  # the last one of this boot
    last_seen: float = 0.0
    former: dict[str, str] = field(default_factory=dict)  # addresses by earlier boot ID


@dataclass(frozen=True, slots=True)
class Report:
    """The parts of a health report that tell one agent from another; times are monotonic."""

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
        """Adds a report. Returns the address of the other agent if there are two, else an empty string."""
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
            while len(former) > MAX_FORMER_BOOTS:
                del former[next(iter(former))]
            self._boots[id] = _Boots(report.boot, report.address, report.at, report.sequence, report.at, former)
        if other:
            self._seen[id] = report.at
        return other

    def is_seen(self, id: InstanceId, now: float) -> bool:
        """Whether there was evidence recently."""
        return now < self._seen.get(id, float("-inf")) + REMEMBERED_SECONDS

    def forget(self, id: InstanceId) -> None:
        self._boots.pop(id, None)
        self._seen.pop(id, None)
