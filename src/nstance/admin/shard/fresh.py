"""Time and chance for commands that end before they could matter to a test."""

import uuid as uuids

from nstance.clock import SystemClock, SystemRng
from nstance.model import ids


def now() -> float:
    return SystemClock().wall()


def uuid() -> str:
    """A UUIDv7: repeating the call that carries it makes no second instance."""
    return str(uuids.UUID(int=ids.uuid7(int(now() * 1000), SystemRng().bits(74))))
