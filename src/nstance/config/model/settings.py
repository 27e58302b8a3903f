"""The whole configuration: `Document` as written in the file, `Settings` as the programs use it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from nstance.config.model import scalars, workload
from nstance.config.model.agent import AgentSource
from nstance.config.model.cluster import ClusterConfig
from nstance.config.model.load_balancers import LoadBalancer
from nstance.config.model.scalars import Block
from nstance.config.model.shard import ShardConfig
from nstance.model.ids import GroupKey, GroupName, TenantId

MAX_GROUPS = 10_000  # of one shard, all tenants together


class Document(Block):
    """Nstance server configuration of one shard."""

    schema_: scalars.Text = Field(default="", alias="$schema", description="for editors; unused")
    cluster: ClusterConfig
    shard: ShardConfig
    tenants: Mapping[scalars.Name, workload.Tenant] = Field(default_factory=dict)
    load_balancers: Mapping[scalars.Label, LoadBalancer] = Field(default_factory=dict)
    images: Mapping[scalars.Label, workload.Image] = Field(default_factory=dict)
    certificates: Mapping[scalars.Label, workload.Certificate] = Field(default_factory=dict)
    agent: AgentSource = AgentSource()
    defaults: workload.Defaults = workload.Defaults()
    templates: Mapping[scalars.Label, workload.Template] = Field(default_factory=dict)
    groups: Mapping[scalars.Name, Mapping[scalars.Name, workload.GroupConfig]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A validated configuration: every reference in it resolves."""

    cluster: ClusterConfig
    shard: ShardConfig
    tenants: Mapping[str, workload.Tenant]
    load_balancers: Mapping[str, LoadBalancer]
    images: Mapping[str, workload.Image]
    certificates: Mapping[str, workload.Certificate]
    agent: AgentSource
    defaults: workload.Defaults
    templates: Mapping[str, workload.Template]
    groups: Mapping[GroupKey, workload.GroupConfig]

    @property
    def ca(self) -> workload.Certificate:
        """The template for the cluster's CA certificate."""
        ca = self.certificates.get(workload.CA_TEMPLATE, workload.Certificate())
        return ca if "ttl" in ca.model_fields_set else ca.model_copy(update={"ttl": workload.CA_LIFETIME_SECONDS})


def make_settings(document: Document) -> Settings:
    """The fields of the document, with groups by key."""
    shared = {each.name: getattr(document, each.name) for each in dataclasses.fields(Settings)}
    groups = {
        GroupKey(TenantId(tenant), GroupName(name)): group
        for tenant, named in document.groups.items()
        for name, group in named.items()
    }
    return Settings(**{**shared, "groups": groups})
