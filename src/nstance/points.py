"""Named crash points: places where a process may die or stall.

Product code awaits `reach(Point.X)` between two steps that must survive a crash in between. In production that is one
look-up of a context variable; the simulator installs a hook per simulated server and can visit every point, singly and
in pairs.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from enum import Enum


class Point(Enum):
    BEFORE_COMMIT = "before-commit"
    AFTER_COMMIT = "after-commit"
    BEFORE_CREATE = "before-create"
    AFTER_CREATE = "after-create"
    BEFORE_DELETE = "before-delete"
    AFTER_DELETE = "after-delete"
    BEFORE_FENCE = "before-fence"
    AFTER_FENCE = "after-fence"
    BEFORE_LEASE = "before-lease"
    AFTER_LEASE = "after-lease"
    BEFORE_SNAPSHOT = "before-snapshot"
    AFTER_SNAPSHOT = "after-snapshot"
    BEFORE_COMPACTION = "before-compaction"
    BEFORE_REGISTRATION = "before-registration"
    AFTER_REGISTRATION = "after-registration"
    BEFORE_RELEASE = "before-release"


Hook = Callable[[Point], Awaitable[None]]

hook: ContextVar[Hook | None] = ContextVar("nstance-crash-point", default=None)


async def reach(point: Point) -> None:
    visit = hook.get()
    if visit is not None:
        await visit(point)
