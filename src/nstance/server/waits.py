"""How long the server waits, and how often it does something. No configuration sets these."""

from dataclasses import dataclass

from nstance.tasks.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """In seconds."""

    boot_retry: Backoff = Backoff(1.0, 60.0, jitter=0.5)
    abstain: float = 3.0  # from the election, after a term that failed
    ca_check: float = 300.0  # well below the time between publishing a new key and using it
    listing_retry: Backoff = Backoff(0.5, 30.0)
    image_retry: Backoff = Backoff(5.0, 600.0)
    userdata_refresh: float = 300.0
    userdata_retry: Backoff = Backoff(2.0, 300.0)
    revision_retry: float = 2.0  # to store or to read one
    files_retry: Backoff = Backoff(2.0, 60.0)
    source_check: float = 10.0  # between two looks for a changed secret or object; usually secrets.cache_ttl
    admission: float = 45.0  # until a registration is read again; with the timeout of a read below a minute
    watch_admission: float = 15.0  # of an operator that watches; with the interval and the timeout below a minute
    watch_admission_interval: float = 30.0
    deregistration: float = 5.0  # that a deletion waits for load balancers
    connections_check: float = 2.0  # whether a load balancer still keeps connections to a VM


WAITS = Waits()
