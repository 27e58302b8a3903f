"""What a check found, and the limits by which times and expiries are judged."""

from dataclasses import dataclass
from enum import Enum

from nstance.admin.shard.records import Record

CLOCK_WARNING_SECONDS = 2.0
CLOCK_PROBLEM_SECONDS = 30.0  # nonces and certificates are refused when clocks differ by minutes
LATENCY_WARNING_SECONDS = 0.5
LATENCY_PROBLEM_SECONDS = 5.0  # leases follow the latency of storage up to here
EXPIRY_WARNING_DAYS = 60.0
DAY_SECONDS = 86400.0


class Level(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    check: str  # clock, storage, certificate, permission, port, version, leader, configuration
    subject: str  # a shard, a server or an object
    message: str
    advice: str = ""

    def record(self) -> Record:
        return {
            "level": self.level.value,
            "check": self.check,
            "subject": self.subject,
            "message": self.message,
            "advice": self.advice or None,
        }


def judge_clock(subject: str, ahead: float, uncertainty: float) -> Finding:
    """`ahead`: how far its clock is ahead of this machine's; `uncertainty`: how far that may be wrong."""
    certain = max(0.0, abs(ahead) - uncertainty)
    direction = "ahead of" if ahead > 0 else "behind"
    message = f"its clock is {abs(ahead):.1f} s {direction} this machine's (measured to ±{uncertainty:.1f} s)"
    advice = "synchronize both clocks (chrony, systemd-timesyncd); certificates and nonces depend on them"
    if certain >= CLOCK_PROBLEM_SECONDS:
        return Finding(Level.PROBLEM, "clock", subject, message, advice)
    if certain >= CLOCK_WARNING_SECONDS:
        return Finding(Level.WARNING, "clock", subject, message, advice)
    return Finding(Level.OK, "clock", subject, f"its clock agrees with this machine's to ±{uncertainty:.1f} s")


def judge_latency(subject: str, seconds: float) -> Finding:
    message = f"a request takes {seconds * 1000:.0f} ms"
    if seconds >= LATENCY_PROBLEM_SECONDS:
        advice = "leadership cannot be kept on storage this slow; use a store that is nearer or faster"
        return Finding(Level.PROBLEM, "storage", subject, message, advice)
    if seconds >= LATENCY_WARNING_SECONDS:
        advice = "failover takes longer on slow storage; use a bucket in the servers' region"
        return Finding(Level.WARNING, "storage", subject, message, advice)
    return Finding(Level.OK, "storage", subject, message)


def judge_expiry(subject: str, *, expires: float, now: float, warning_seconds: float, advice: str) -> Finding:
    left = expires - now
    days = f"{left / DAY_SECONDS:.0f} days" if left >= 2 * DAY_SECONDS else f"{left / 3600:.1f} hours"
    if left <= 0:
        return Finding(Level.PROBLEM, "certificate", subject, "it has expired", advice)
    if left < warning_seconds:
        return Finding(Level.WARNING, "certificate", subject, f"it expires in {days}", advice)
    return Finding(Level.OK, "certificate", subject, f"it expires in {days}")


def judge_version(subject: str, version: str, own: str) -> Finding:
    if version == own:
        return Finding(Level.OK, "version", subject, f"it runs {version}, as this program does")
    advice = "upgrade the older one; neighboring versions work together"
    return Finding(Level.WARNING, "version", subject, f"it runs {version}, this program is {own}", advice)
