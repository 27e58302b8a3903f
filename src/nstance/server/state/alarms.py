"""What is wrong with the whole shard now, for people. Each alarm lasts as long as its cause."""

from collections.abc import Mapping
from enum import Enum


class AlarmKind(Enum):
    MASS_SILENCE = "mass-silence"
    MASS_ABSENCE = "mass-absence"
    PROVIDER = "provider"  # it does not list the VMs
    PAUSED_VMS = "paused-vms"


class Alarms:
    """Of one term."""

    def __init__(self) -> None:
        self._messages: dict[AlarmKind, str] = {}

    @property
    def messages(self) -> Mapping[AlarmKind, str]:
        return self._messages

    def set(self, kind: AlarmKind, message: str) -> None:
        """An empty message ends it."""
        if message:
            self._messages[kind] = message
        else:
            self._messages.pop(kind, None)
