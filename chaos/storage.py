"""A proxy in front of storage that can spoil single HTTP requests: refuse them, lose their answers, or apply them late."""

import asyncio
import random
from dataclasses import dataclass

from bench import wires

REFUSED = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 56\r\n\r\n"
    b"<Error><Code>SlowDown</Code><Message>x</Message></Error>"
)


@dataclass(frozen=True, slots=True)
class FaultModel:
    """The delay of requests, and the probability of each bad ending."""

    delay: tuple[float, float] = (0.0, 0.0)
    refused: float = 0.0  # 503, not applied
    lost: float = 0.0  # applied, and the connection ends without an answer
    denied: float = 0.0  # applied, and the answer is an error


NO_FAULTS = FaultModel()


class Storage(wires.Server):
    def __init__(self, upstream: int, r: random.Random) -> None:
        super().__init__(upstream)
        self.fault_model = NO_FAULTS
        self._r = r
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Hold requests back. They are applied afterwards, although their clients gave up."""
        self._open.clear()

    def pass_on(self) -> None:
        """Stop all faults."""
        self._open.set()
        self.fault_model = NO_FAULTS

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._one(reader, writer):
            pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await wires.message(reader)
        self.counts["requests"] += 1
        if not self._open.is_set():
            self.counts["requests held"] += 1
            await self._open.wait()
            if reader.at_eof():
                self.counts["requests applied late"] += 1
        fault_model = self.fault_model
        if fault_model.delay[1]:
            self.counts["requests slowed"] += 1
            await asyncio.sleep(self._r.uniform(*fault_model.delay))
        draw = self._r.random()
        if draw < fault_model.refused:
            self.counts["requests refused"] += 1
            writer.write(REFUSED)
            await writer.drain()
            return True
        answer = await wires.answer(self.upstream, request)
        if draw < fault_model.refused + fault_model.lost:
            self.counts["answers lost"] += 1
            return False
        if draw < fault_model.refused + fault_model.lost + fault_model.denied:
            self.counts["answers spoiled"] += 1
            answer = REFUSED
        writer.write(answer)
        await writer.drain()
        return True
