"""What the health stream has to say next.

Bounded by nature: the newest report replaces one that could not leave yet, a notice is kept once for each kind, and a
goodbye is the last word. Notices overtake reports, and all of them are said again on each new stream: the server that
heard them may not be the one that leads now.
"""

import asyncio

from nstance.v1 import agent_pb2


class Outbox:
    def __init__(self) -> None:
        self._notices: dict[int, agent_pb2.Notice] = {}
        self._untold: list[int] = []
        self._report: agent_pb2.HealthReport | None = None
        self._goodbye: agent_pb2.Goodbye | None = None
        self._filled = asyncio.Event()

    def reopen(self) -> None:
        """A new stream begins."""
        self._untold = list(self._notices)
        self._report = None
        if self._untold:
            self._filled.set()

    def notice(self, notice: agent_pb2.Notice) -> None:
        if self._notices.get(notice.kind) == notice:
            return
        self._notices[notice.kind] = notice
        if notice.kind not in self._untold:
            self._untold.append(notice.kind)
        self._filled.set()

    def report(self, report: agent_pb2.HealthReport) -> None:
        self._report = report
        self._filled.set()

    def goodbye(self, reason: "agent_pb2.Goodbye.Reason.ValueType") -> None:
        self._goodbye = agent_pb2.Goodbye(reason=reason)
        self._filled.set()

    async def next(self) -> agent_pb2.AgentMessage:
        while True:
            if self._untold:
                return agent_pb2.AgentMessage(notice=self._notices[self._untold.pop(0)])
            if self._goodbye is not None:
                return agent_pb2.AgentMessage(goodbye=self._goodbye)
            if self._report is not None:
                report, self._report = self._report, None
                return agent_pb2.AgentMessage(report=report)
            self._filled.clear()
            await self._filled.wait()
