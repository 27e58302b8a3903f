"""The agent's numbers for Prometheus, written by hand: the metrics library would be a large part of the agent's memory.

How busy the machine is goes to the server in health reports, which exports it by group.
"""

import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nstance.agent.version import VERSION
from nstance.v1 import agent_pb2

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NOTICE_KINDS = {
    agent_pb2.Notice.SPOT_TERMINATION: "spot-termination",
    agent_pb2.Notice.SPOT_REBALANCE: "spot-rebalance",
    agent_pb2.Notice.SHUTDOWN: "shutdown",
}

Sample = tuple[Mapping[str, str], float]


@dataclass(slots=True)
class AgentMetrics:
    registered: bool = False
    connected: bool = False  # a server has answered on the current connection
    connections: int = 0  # that a server has answered on
    certificate_expires: float = 0.0
    reports: int = 0
    problems: int = 0  # that the last report named
    notices: Counter[int] = field(default_factory=Counter)  # by kind

    def render(self, proc: Path = Path("/proc/self")) -> str:
        """In the text format of Prometheus."""
        build = {"program": "nstance-agent", "version": VERSION, "python": platform.python_version()}
        times = os.times()
        families: tuple[tuple[str, str, str, Iterable[Sample]], ...] = (
            ("nstance_build_info", "gauge", "Always 1; the labels say what runs.", [(build, 1)]),
            ("nstance_agent_registered", "gauge", "1 if the agent has an identity.", [({}, self.registered)]),
            ("nstance_agent_connected", "gauge", "1 if a server answers.", [({}, self.connected)]),
            ("nstance_agent_connections_total", "counter", "Connections to servers.", [({}, self.connections)]),
            (
                "nstance_agent_certificate_expiry_timestamp_seconds",
                "gauge",
                "When the agent's certificate expires.",
                [({}, self.certificate_expires)],
            ),
            ("nstance_agent_reports_total", "counter", "Health reports.", [({}, self.reports)]),
            ("nstance_agent_problems", "gauge", "Problems that the last report named.", [({}, self.problems)]),
            (
                "nstance_agent_notices_total",
                "counter",
                "Notices that this machine ends, by kind.",
                [({"kind": name}, self.notices[kind]) for kind, name in NOTICE_KINDS.items()],
            ),
            ("process_cpu_seconds_total", "counter", "Processor time in seconds.", [({}, times.user + times.system)]),
            ("process_resident_memory_bytes", "gauge", "Resident memory in bytes.", [({}, _resident_bytes(proc))]),
        )
        return "".join(
            f"# HELP {name} {about}\n# TYPE {name} {kind}\n" + "".join(_line(name, *sample) for sample in samples)
            for name, kind, about, samples in families
        )


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {float(value)!r}\n" if inside else f"{name} {float(value)!r}\n"


def _resident_bytes(proc: Path) -> int:
    try:
        return int((proc / "statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
