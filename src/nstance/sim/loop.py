"""An event loop in virtual time, and machines in it that can be killed, stopped and frozen.

`select` never blocks: when nothing is ready it moves the clock to the next timer. The order of ready callbacks is drawn from
a seed, so that one seed is one schedule. Every callback belongs to the machine in its context: those of a stopped machine
wait, those of a dead one are dropped, as with SIGSTOP and SIGKILL. No `finally` runs on a machine that was killed.
"""

import asyncio
import contextvars
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

from nstance.clock import Steady

current: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)


class StuckError(RuntimeError):
    """Nothing is ready and nothing is scheduled."""


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self._now = 0.0
        self._order = random.Random(seed)
        self._selector = self
        self.grain = 0.0  # seconds; timers end on multiples of it, as on a busy machine
        self._clock_resolution = 1e-9
        self._tasks: set[asyncio.Task[Any]] = set()
        self.ending = False
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        ready = self._ready  # type: ignore[attr-defined]
        if ready:
            if len(ready) > 1:
                items = list(ready)
                self._order.shuffle(items)
                ready.clear()
                ready.extend(items)
        elif timeout is None:
            raise StuckError("nothing is ready and nothing is scheduled")
        else:
            self._now += timeout
        return []

    def _process_events(self, events: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run it at once, without a thread: otherwise a seed would not be one schedule."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as problem:
            done.set_exception(problem)
        return done

    def _make_task(self, loop: object, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        """Hold tasks until they are done: those of a killed process must not be finalized while the world runs on."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=contextvars.Context())
        return task

    def finish(self) -> None:
        """Dispose of all pending tasks, dead processes included."""
        self.ending = True
        self.set_exception_handler(lambda loop, context: None)
        outer = asyncio._get_running_loop()
        # Without a running loop, a `finally` that gathers nothing would create a loop that is never closed.
        asyncio._set_running_loop(self)
        try:
            self._close_tasks()
        finally:
            asyncio._set_running_loop(outer)
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()

    def _close_tasks(self) -> None:
        while self._tasks:  # a `finally` may start more of them
            tasks, self._tasks = self._tasks, set()
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coro: Any = task.get_coro()
                for _ in range(50):  # a `finally` that awaits has to be closed again
                    try:
                        coro.close()
                        break
                    except BaseException:
                        continue

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        process, context = _owner(context)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        gate = _Gate(process, callback, args)
        gate.handle = super().call_soon(gate, context=context)
        return gate.handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        process, context = _owner(context)
        if self.grain:
            when = math.ceil(when / self.grain) * self.grain
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        gate = _Gate(process, callback, args)
        timer = super().call_at(when, gate, context=context)
        gate.handle = timer
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)


def _owner(context: contextvars.Context | None) -> "tuple[Process | None, contextvars.Context]":
    if context is None:
        context = contextvars.copy_context()
    return context.get(current), context


class Process:
    """One process of a machine. Its callbacks run only while it is neither dead nor stopped."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.dead = False
        self.parked: list[tuple[_Gate, contextvars.Context]] = []


class _Gate:
    __slots__ = ("args", "callback", "handle", "process")

    def __init__(self, process: Process, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.process = process
        self.callback = callback
        self.args = args
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        process = self.process
        if self.handle is not None and self.handle.cancelled():
            return  # cancelled while it was parked
        if not process.machine.loop.ending:
            if process.dead:
                return
            if process.machine.stopped:
                process.parked.append((self, contextvars.copy_context()))
                return
        self.callback(*self.args)


class Machine:
    """One simulated computer: its process and its clocks (a `nstance.clock.Clock`)."""

    def __init__(self, name: str, loop: VirtualLoop, *, rate: float = 1.0, wall: float = 1.7e9) -> None:
        self.name = name
        self.loop = loop
        self.life = 0  # counts its processes
        self.process: Process | None = None
        self.stopped = False
        self.rate = rate
        self._wall = wall
        self._frozen = 0.0
        self.anchor(self.wall())

    def monotonic(self) -> float:
        return (self.loop.time() - self._frozen) * self.rate

    def boot(self) -> float:
        return self.loop.time() * self.rate

    def wall(self) -> float:
        return self._wall + self.loop.time()

    def steady(self) -> float:
        return self._steady.read(self.wall(), self.boot())

    def anchor(self, steady: float) -> None:
        self._steady = Steady(steady, self.boot())

    async def sleep(self, seconds: float) -> None:
        # A microsecond more: rounding must not wake a sleeper just before its time again and again.
        await asyncio.sleep(max(0.0, seconds) / self.rate + 1e-6)

    # ---- faults

    @property
    def alive(self) -> bool:
        return self.process is not None

    def run(self, main: Callable[[], Coroutine[Any, Any, object]]) -> asyncio.Task[object]:
        """Start its process."""
        assert self.process is None
        self.life += 1
        self.process = Process(self)
        self.anchor(self.wall())  # a new process knows only the wall clock
        return self.loop.create_task(main(), context=self.context())

    def context(self) -> contextvars.Context:
        """Tasks that are started in it belong to the current process."""
        context = contextvars.copy_context()
        context.run(current.set, self.process)
        return context

    def kill(self) -> None:
        if self.process is not None:
            self.process.dead = True
            self.process.parked.clear()
        self.process = None
        self.stopped = False

    def stop(self) -> None:
        if self.process is not None:
            self.stopped = True

    def resume(self, *, frozen_for: float = 0.0) -> None:
        """Continue. `frozen_for`: seconds for which its monotonic clock stood still too."""
        if not self.stopped or self.process is None:
            return
        self.stopped = False
        self._frozen += frozen_for
        parked, self.process.parked = self.process.parked, []
        for gate, context in parked:
            asyncio.BaseEventLoop.call_soon(self.loop, gate, context=context)

    def jump(self, seconds: float) -> None:
        """Set its wall clock."""
        self._wall += seconds
