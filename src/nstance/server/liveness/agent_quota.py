"""Rate limits for one agent: messages, and writes to object storage that it causes.

They belong to the agent's identity, because an agent can open as many streams and connections as it likes.
"""

from dataclasses import dataclass


class TokenBucket:
    """Limits to a rate with bursts."""

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
WRITES_PER_SECOND = 1 / 60  # certificates, and events that it causes
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
