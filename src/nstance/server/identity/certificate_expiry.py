"""When certificates end that nobody looks at (F68): told to whoever measures, and an alarm while there is time.

This server's own certificate renews itself. The CA does not: somebody has to rotate it, and must hear of it in time.
"""

import logging
from collections.abc import Callable

from nstance.clock import Clock
from nstance.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

CA_ALARM = 60 * 86400.0  # before the end of the newest CA
AGAIN = 86400.0


class CertificateExpiry:
    def __init__(self, metrics: Metrics, clock: Clock, announce: Callable[[str], bool]) -> None:
        """`announce` tells everybody, if this server leads; says whether it did."""
        self._metrics = metrics
        self._clock = clock
        self._announce = announce
        self._told = self._logged = float("-inf")

    def look(self, *, server: float, ca: float) -> None:
        """When they expire, in wall time. `ca`: the newest one, also if it does not sign yet."""
        self._metrics.certificates_expire(server=server, ca=ca)
        left, now = ca - self._clock.wall(), self._clock.monotonic()
        if left >= CA_ALARM or now < self._told + AGAIN:
            return
        alarm = f"the cluster's CA expires in {max(0.0, left) / 86400:.0f} days: run `nstance-admin cluster ca rotate`"
        if self._announce(alarm):
            self._told = now
        elif now >= self._logged + AGAIN:
            self._logged = now
            log.error(alarm)
