"""Expiry of the server's certificate and of the CA: a metric, and a warning while there is time.

The server's own certificate renews itself. The CA does not: somebody has to rotate it.
"""

import logging
from collections.abc import Callable

from nstance.clock import Clock
from nstance.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

CA_WARNING_SECONDS = 60 * 86400.0  # before the newest CA expires
REPEAT_SECONDS = 86400.0


class CertificateExpiry:
    def __init__(self, metrics: Metrics, clock: Clock, record_event: Callable[[str], bool]) -> None:
        """`record_event` writes to the event log if this server leads, and returns whether it did."""
        self._metrics = metrics
        self._clock = clock
        self._record_event = record_event
        self._recorded_at = self._logged_at = float("-inf")

    def check(self, *, server: float, ca: float) -> None:
        """Takes the expiry times by the wall clock. `ca`: of the newest CA, also if it does not sign yet."""
        self._metrics.certificates_expire(server=server, ca=ca)
        remaining, now = ca - self._clock.wall(), self._clock.monotonic()
        if remaining >= CA_WARNING_SECONDS or now < self._recorded_at + REPEAT_SECONDS:
            return
        days = max(0.0, remaining) / 86400
        warning = f"the cluster's CA expires in {days:.0f} days: run `nstance-admin cluster ca rotate`"
        if self._record_event(warning):
            self._recorded_at = now
        elif now >= self._logged_at + REPEAT_SECONDS:
            self._logged_at = now
            log.error(warning)
