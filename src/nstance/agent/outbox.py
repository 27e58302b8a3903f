"""The messages that wait for the health stream.

Bounded by design: the newest report replaces one that was not sent yet, one notice is kept per kind, and a goodbye is
the last message. Notices are sent before reports, and again on each new stream, because the server that received them
may no longer be the leader.
"""

import asyncio

from nstance.v1 import agent_pb2


class Outbox:
    def __init__(self) -> None:
        self._notices: dict[int, agent_pb2.Notice] = {}
        self._unsent: list[int] = []  # kinds of notices
        self._report: agent_pb2.HealthReport | None = None
        self._goodbye: agent_pb2.Goodbye | None = None
        self._filled = asyncio.Event()

    def on_stream_open(self) -> None:
        self._unsent = list(self._notices)
        self._report = None
        if self._unsent:
            self._filled.set()

    def add_notice(self, notice: agent_pb2.Notice) -> None:
        if self._notices.get(notice.kind) == notice:
            return
        self._notices[notice.kind] = notice
        if notice.kind not in self._unsent:
            self._unsent.append(notice.kind)
        self._filled.set()

    def set_report(self, report: agent_pb2.HealthReport) -> None:
        self._report = report
        self._filled.set()

    def set_goodbye(self, reason: "agent_pb2.Goodbye.Reason.ValueType") -> None:
        self._goodbye = agent_pb2.Goodbye(reason=reason)
        self._filled.set()

    async def next(self) -> agent_pb2.AgentMessage:
        while True:
            if self._unsent:
                return agent_pb2.AgentMessage(notice=self._notices[self._unsent.pop(0)])
            if self._goodbye is not None:
                return agent_pb2.AgentMessage(goodbye=self._goodbye)
            if self._report is not None:
                report, self._report = self._report, None
                return agent_pb2.AgentMessage(report=report)
            self._filled.clear()
            await self._filled.wait()
