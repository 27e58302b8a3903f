"""How much one agent may say, and how much it may make the server write: by its identity, not by stream or connection.

Whoever has a certificate can open a new stream, or connect anew, as often as it likes (B17).
"""

from dataclasses import dataclass


class TokenBucket:
    """So many a second, with bursts."""

    __slots__ = ("_at", "_burst", "_per_second", "_tokens")

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._tokens, self._at = burst, now

    def take(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


MESSAGES_PER_SECOND = 20.0
MESSAGE_BURST = 200.0
WRITES_PER_SECOND = 1 / 60  # to object storage: certificates, and events that it causes
WRITE_BURST = 20.0


@dataclass(frozen=True, slots=True)
class AgentQuota:
    messages: TokenBucket
    writes: TokenBucket


def agent_quota(now: float) -> AgentQuota:
    return AgentQuota(
        messages=TokenBucket(MESSAGES_PER_SECOND, MESSAGE_BURST, now),
        writes=TokenBucket(WRITES_PER_SECOND, WRITE_BURST, now),
    )
