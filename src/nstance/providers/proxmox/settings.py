"""What the configuration says about the whole cluster."""

from dataclasses import dataclass, field

from nstance.providers.proxmox.placement import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxmoxSettings:
    iso_storage: str = "local"
    vmids: range = range(100_000, 1_000_000)
    bridge: str = ""
    pool: str = ""
    limits: Limits = field(default_factory=Limits)
