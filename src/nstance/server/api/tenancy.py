"""What an operator may see and name: the groups and instances of its tenant.

The tenant comes only from the certificate; an admin may choose another one. Something of another tenant and something
that does not exist give the same answer at the same cost, so every lookup of the operator API goes through this class.
"""

from nstance.config.resolve import Resolved
from nstance.model import ids
from nstance.model.ids import GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import ENDED, Instance
from nstance.pki import names
from nstance.server.config.active_config import ActiveConfig
from nstance.server.state.committed_records import CommittedRecords
from nstance.wire import status
from nstance.wire.call import PERSON


class Tenancy:
    def __init__(
        self,
        who: names.Operator,
        active_config: ActiveConfig,
        records: CommittedRecords,
        *,
        person: str = "",
        tenant: TenantId | None = None,
    ) -> None:
        """`person`: for whom the operator says that it acts, a note for the history and never a right. `tenant`: another
        one than the operator's own."""
        self.who = who
        self.person = person if PERSON.fullmatch(person) else ""
        self.tenant = who.tenant if tenant is None else tenant
        self._active_config = active_config
        self._records = records

    @property
    def by(self) -> str:
        """Who asked, for the history: the operator, and the person for whom it asked."""
        return f"{self.who.id} for {self.person}" if self.person else self.who.id

    def key(self, name: str) -> GroupKey:
        """The key of a group that need not exist."""
        if not ids.is_name(name):
            raise status.invalid("key", "expected a name of lower-case letters, digits and single hyphens, at most 32")
        return GroupKey(self.tenant, GroupName(name))

    def group(self, name: str) -> Resolved:
        found = self._active_config.configuration.groups.get(GroupKey(self.tenant, GroupName(name)))
        if found is None:
            raise no_group()
        return found

    def groups(self) -> list[Resolved]:
        """Sorted by name."""
        mine = (r for key, r in self._active_config.configuration.groups.items() if key.tenant == self.tenant)
        return sorted(mine, key=lambda resolved: resolved.group.key)

    def instance(self, id: str) -> Instance:
        found = self._records.get(InstanceId(id))
        if found is None or found.tenant != self.tenant:
            raise no_instance()
        return found

    def instances(self, group: str = "", *, ended: bool = False) -> list[Instance]:
        """Sorted by ID. A deleted group keeps instances for a while."""
        if group:
            key = GroupKey(self.tenant, GroupName(group))
            found = list(self._records.members(key).values())
            if not found:
                self.group(group)
        else:
            found = list(self._records.of_tenant(self.tenant))
        return sorted((i for i in found if ended or i.state not in ENDED), key=lambda instance: instance.id)


def no_group() -> Exception:
    return status.not_found("there is no such group")


def no_instance() -> Exception:
    return status.not_found("there is no such instance")
