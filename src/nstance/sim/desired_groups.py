"""The configuration of a simulated shard, as a person would write it, with short times."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nstance.model.ids import DEFAULT_TENANT, ClusterId, GroupKey, GroupName, ShardId

CLUSTER = ClusterId("sim")
SHARD = ShardId("sim-1")
SUBNETS = ("north", "south")

SUSPECT_AFTER = 5.0
DEAD_AFTER = 15.0
COLLECT_EVERY = 10.0
REGISTRATION_TIMEOUT = 30.0
READY_TIMEOUT = 20.0
UNHEALTHY_AFTER = 8.0  # of a failing check, where that counts
CAPACITY_RETRY = 4.0
FORCED_AGE = 3000.0  # longer than any run
BALANCER = "front"


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredGroup:
    size: int = 1
    generation: int = 0  # of its template's arguments: a new one makes instances drift
    max_surge: int = 1
    max_unavailable: int = 0
    drain: float = 8.0
    files: int = 0  # of its vars: new ones are pushed to running instances
    balanced: bool = False  # its instances belong to a load balancer
    order: str = "parallel"
    settle: float = 0.0
    canary: int = 0
    pause: str = "wait"
    max_failures: int = 2
    on_failure: str = "halt"
    instance_types: tuple[str, ...] = ("small",)
    markets: tuple[str, ...] = ()
    prefer: str = "loose"
    checks: float = 0.0  # seconds between two runs of its instances' check; 0: they have none
    unhealthy_after: float = 0.0  # of a failing check; 0: never

    def offers(self) -> dict[str, object]:
        prefer = self.prefer if self.max_surge else "loose"
        fields: dict[str, object] = {"instance_types": self.instance_types, "prefer": prefer}
        return fields | ({"markets": self.markets} if self.markets else {})

    def update(self) -> dict[str, object]:
        fields: dict[str, object] = {
            "max_surge": self.max_surge,
            "max_unavailable": self.max_unavailable,
            "order": self.order,
            "max_failures": self.max_failures,
            "on_failure": self.on_failure,
        }
        if self.order == "serial":
            fields["settle"] = f"{self.settle}s"
        if self.canary:
            fields |= {"canary": self.canary, "pause_after_canary": self.pause}
        return fields

    def check_block(self) -> dict[str, object]:
        """Only instances of its own revision pass the check."""
        if not self.checks:
            return {}
        check = {"kind": "command", "argv": ["serves"], "interval": f"{self.checks}s"}
        limit = {"unhealthy_after": f"{self.unhealthy_after}s"} if self.unhealthy_after else {}
        return {"checks": {check_name(self.generation): check, **limit}}


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredGroups:
    groups: Mapping[str, DesiredGroup] = field(default_factory=lambda: {"web": DesiredGroup()})
    heartbeat: float = 0.6
    on_clone: str = "alarm"
    collect: float = COLLECT_EVERY  # seconds between two listings of the provider
    capacity_retry: float = CAPACITY_RETRY
    unknown: str = "hold"  # what happens to VMs that no record knows
    eligible_age: float | None = None
    forced_age: float = FORCED_AGE

    def without_expiry(self) -> "DesiredGroups":
        """A shard whose instances expire is never at rest."""
        return replace(self, eligible_age=None, forced_age=FORCED_AGE)

    def text(self) -> bytes:
        return json.dumps(self._document(), sort_keys=True).encode()

    def _document(self) -> dict[str, object]:
        return {
            "cluster": {
                "id": CLUSTER,
                "secrets": {"encryption_key": {"provider": "env", "source": "NSTANCE_KEY"}, "cache_ttl": "1s"},
            },
            "load_balancers": {BALANCER: {"provider": "memory"}},
            "shard": {
                "infra": {"provider": "memory", "region": "sim", "zone": "a"},
                "subnet_pools": {"pool": list(SUBNETS)},
                "capacity_retry": f"{self.capacity_retry}s",
                "request_timeout": "6s",
                "health": {
                    "suspect_after": f"{SUSPECT_AFTER}s",
                    "dead_after": f"{DEAD_AFTER}s",
                    "shutdown_grace": "2s",
                },
                "garbage_collection": {
                    "interval": f"{self.collect}s",
                    "registration_timeout": f"{REGISTRATION_TIMEOUT}s",
                    "deleted_record_retention": "30m",
                    "unknown": self.unknown,
                },
                "expiry": self._expiry(),
                "leader_election": {"heartbeat": f"{self.heartbeat}s"},
                "identity": {"on_clone": self.on_clone},
            },
            "templates": {
                f"{name}-vm": {
                    "kind": "sim",
                    **desired.offers(),
                    "subnet_pool": "pool",
                    "args": {"generation": desired.generation},
                    "vars": {"files": str(desired.files)},
                    "files": {
                        "token": {"kind": "secret", "source": f"token-{name}"},
                        "generation": {"kind": "string", "template": str(desired.generation)},
                    },
                    "ready_timeout": f"{READY_TIMEOUT}s",
                    **desired.check_block(),
                }
                for name, desired in self.groups.items()
            },
            "groups": {
                DEFAULT_TENANT: {
                    name: {
                        "template": f"{name}-vm",
                        "size": desired.size,
                        "drain_timeout": f"{desired.drain}s",
                        "load_balancers": [BALANCER] if desired.balanced else [],
                        "update": desired.update(),
                    }
                    for name, desired in self.groups.items()
                }
            },
        }

    def _expiry(self) -> dict[str, object]:
        eligible = {} if self.eligible_age is None else {"eligible_age": f"{self.eligible_age}s"}
        return {**eligible, "forced_age": f"{self.forced_age}s"}


def check_name(generation: object) -> str:
    return f"serves-{generation}"


def key(name: str) -> GroupKey:
    return GroupKey(DEFAULT_TENANT, GroupName(name))
