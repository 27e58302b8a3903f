"""VMIDs: drawn from a range, because Proxmox cannot reserve one and gives a freed one away at once.

They follow from the instance ID, so every server that creates an instance asks for the same ones in the same order. Of two
clones to one VMID the cluster accepts one.
"""

import hashlib
from collections.abc import Iterator

from nstance.model.ids import InstanceId

MAX_DRAWS = 16


def draw(id: InstanceId, attempt: int, vmids: range) -> int:
    digest = hashlib.sha256(f"{id}/{attempt}".encode()).digest()
    return vmids[int.from_bytes(digest[:8], "big") % len(vmids)]


def draws(id: InstanceId, vmids: range) -> Iterator[int]:
    return (draw(id, attempt, vmids) for attempt in range(MAX_DRAWS))
