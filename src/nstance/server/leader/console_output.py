"""The console output of VMs whose agent never registered, for people."""

from nstance.model.decision import ReasonCode
from nstance.model.instance import Instance
from nstance.server.identity.issuer import Issuer
from nstance.server.state.event_log import EventLog

MAX_BYTES = 2048


class ConsoleOutput:
    def __init__(self, issuer: Issuer, event_log: EventLog) -> None:
        self._issuer = issuer
        self._event_log = event_log

    def record(self, instance: Instance, output: str) -> None:
        """Record the end of the output as an event, without the registration nonce."""
        if instance.nonce is not None:
            output = output.replace(self._issuer.token(instance), "[nonce]")
        text = "".join(c for c in output if c.isprintable() or c in "\n\t").strip()
        text = text.encode("utf-8", "replace")[-MAX_BYTES:].decode("utf-8", "ignore")
        self._event_log.record(instance.key, ReasonCode.UNREGISTERED, f"last console output:\n{text}", instance.id)
