"""What one simulated run is made of."""

from dataclasses import dataclass, field

from nstance.sim.desired_groups import DesiredGroups


@dataclass(frozen=True, slots=True)
class Aim:
    """Faults that strike in quick succession, shortly after a moment of this kind (`World.on_moment`)."""

    moment: str
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    servers: int = 2
    seconds: float = 40.0  # of faults
    every: float = 2.0  # seconds between two faults, on average
    faults: tuple[str, ...] = ()
    theme: str = "everything"
    aims: tuple[Aim, ...] = ()
    crash: float = 0.0  # probability of a crash at each named point
    pause: float = 0.0  # probability of a pause there
    storage: float = 0.0  # probability of each way in which a storage call fails
    provider: float = 0.0  # probability of each way in which a provider call fails
    bad_boots: float = 0.0  # share of VMs whose agent never registers
    broken_boots: float = 0.0  # share of VMs that never become ready
    drift: float = 0.0  # by which a clock's rate may be off
    apart: float = 2.0  # seconds by which the servers' wall clocks may be off
    lag: float = 0.0  # seconds by which the provider's answers are out of date
    contradicts: bool = False  # single answers lag, listings do not
    boot: tuple[float, float] = (0.5, 4.0)  # seconds that VMs take to start
    dying: float = 2.0  # seconds that VMs run on after a delete
    stale_lists: float = 0.0  # probability that a listing of storage is out of date
    acknowledges: float = 0.7  # probability that the operator drains a node in time
    operator: bool = True
    snapshots: bool = False  # often, and with compaction
    latency: float = 1.0  # of storage, as a multiple of a cloud's (median 28 ms)
    audited: bool = True  # every step is checked; too slow for thousands of instances
    desired_groups: DesiredGroups = field(default_factory=DesiredGroups)

    @property
    def freezes(self) -> bool:
        return "freeze" in self.faults or any("freeze" in aim.faults for aim in self.aims)
