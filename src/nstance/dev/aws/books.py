"""What the stand-in remembers beside moto: tokens, offers, pages, interfaces that detach, targets that drain."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from nstance.dev.aws.rules import Offer

Params = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Launch:
    """What a ClientToken stands for."""

    params: Params
    instance: str


@dataclass(slots=True)
class Target:
    registered: float
    deregistered: float | None = None


@dataclass(slots=True)
class Books:
    """Times are monotonic."""

    launches: dict[str, Launch] = field(default_factory=dict)  # by token
    launching: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))  # by token
    tagged: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # by the tag of our ID
    created: dict[str, float] = field(default_factory=dict)  # by instance
    terminated: dict[str, float] = field(default_factory=dict)
    interrupted: dict[str, float] = field(default_factory=dict)  # spot instances that were reclaimed, or will be then
    offers: dict[str, Offer] = field(default_factory=dict)  # of instances that exist
    userdata: dict[str, str] = field(default_factory=dict)  # base64
    protected: set[str] = field(default_factory=set)  # from termination
    console: dict[str, str] = field(default_factory=dict)
    pages: dict[str, bytes] = field(default_factory=dict)
    detaching: dict[str, float] = field(default_factory=dict)  # by interface: until when
    targets: dict[tuple[str, str], Target] = field(default_factory=dict)  # by group and instance
    calls: list[tuple[str, Params]] = field(default_factory=list)
    budget: float = 0.0
    budget_at: float = 0.0

    def count(self, action: str) -> int:
        return sum(called == action for called, _ in self.calls)
