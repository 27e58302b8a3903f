"""What the simulated shard is told: a configuration file as a person would write it, with short times."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from nstance.model.ids import DEFAULT_TENANT, ClusterId, GroupKey, GroupName, ShardId

CLUSTER = ClusterId("sim")
SHARD = ShardId("sim-1")
SUBNETS = ("north", "south")

SUSPECT_AFTER = 5.0
DEAD_AFTER = 15.0
COLLECT_EVERY = 10.0
REGISTRATION_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWish:
    size: int = 1
    generation: int = 0  # of its template's arguments: a new one makes instances drift
    max_surge: int = 1
    max_unavailable: int = 0
    drain: float = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    groups: Mapping[str, GroupWish] = field(default_factory=lambda: {"web": GroupWish()})
    heartbeat: float = 0.6

    def text(self) -> bytes:
        return json.dumps(self._document(), sort_keys=True).encode()

    def _document(self) -> dict[str, object]:
        return {
            "cluster": {"id": CLUSTER, "secrets": {"encryption_key": {"provider": "env", "source": "NSTANCE_KEY"}}},
            "shard": {
                "infra": {"provider": "memory", "region": "sim", "zone": "a"},
                "subnet_pools": {"pool": list(SUBNETS)},
                "request_timeout": "6s",
                "health": {
                    "suspect_after": f"{SUSPECT_AFTER}s",
                    "dead_after": f"{DEAD_AFTER}s",
                    "shutdown_grace": "2s",
                },
                "garbage_collection": {
                    "interval": f"{COLLECT_EVERY}s",
                    "registration_timeout": f"{REGISTRATION_TIMEOUT}s",
                    "deleted_record_retention": "30m",
                },
                "expiry": {"forced_age": "50m"},  # nobody here lives that long
                "leader_election": {"heartbeat": f"{self.heartbeat}s"},
            },
            "templates": {
                f"{name}-vm": {
                    "kind": "sim",
                    "instance_type": "small",
                    "subnet_pool": "pool",
                    "args": {"generation": wish.generation},
                }
                for name, wish in self.groups.items()
            },
            "groups": {
                DEFAULT_TENANT: {
                    name: {
                        "template": f"{name}-vm",
                        "size": wish.size,
                        "drain_timeout": f"{wish.drain}s",
                        "update": {"max_surge": wish.max_surge, "max_unavailable": wish.max_unavailable},
                    }
                    for name, wish in self.groups.items()
                }
            },
        }


def key(name: str) -> GroupKey:
    return GroupKey(DEFAULT_TENANT, GroupName(name))
