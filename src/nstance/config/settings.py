"""A whole configuration: `Document` as it is written, `Settings` as the programs use it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from nstance.config import blocks, fields, workload
from nstance.config.fields import Block
from nstance.model.ids import GroupKey, GroupName, TenantId

MAX_GROUPS = 10_000  # of one shard, all tenants together


class Document(Block):
    """Nstance server configuration of one shard."""

    schema_: fields.Text = Field(default="", alias="$schema", description="for editors; unused")
    cluster: blocks.Cluster
    shard: blocks.Shard
    tenants: Mapping[fields.Name, workload.Tenant] = Field(default_factory=dict)
    load_balancers: Mapping[fields.Label, workload.LoadBalancer] = Field(default_factory=dict)
    images: Mapping[fields.Label, workload.Image] = Field(default_factory=dict)
    certificates: Mapping[fields.Label, workload.Certificate] = Field(default_factory=dict)
    defaults: workload.Defaults = workload.Defaults()
    templates: Mapping[fields.Label, workload.Template] = Field(default_factory=dict)
    groups: Mapping[fields.Name, Mapping[fields.Name, workload.GroupConfig]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Validated: everything that is referred to exists."""

    cluster: blocks.Cluster
    shard: blocks.Shard
    tenants: Mapping[str, workload.Tenant]
    load_balancers: Mapping[str, workload.LoadBalancer]
    images: Mapping[str, workload.Image]
    certificates: Mapping[str, workload.Certificate]
    defaults: workload.Defaults
    templates: Mapping[str, workload.Template]
    groups: Mapping[GroupKey, workload.GroupConfig]

    @property
    def ca(self) -> workload.Certificate:
        """The shape of the cluster's certificate authority."""
        given = self.certificates.get(workload.CA, workload.Certificate())
        return given if "ttl" in given.model_fields_set else given.model_copy(update={"ttl": workload.CA_LIFE})


def settings(document: Document) -> Settings:
    return Settings(
        cluster=document.cluster,
        shard=document.shard,
        tenants=document.tenants,
        load_balancers=document.load_balancers,
        images=document.images,
        certificates=document.certificates,
        defaults=document.defaults,
        templates=document.templates,
        groups={
            GroupKey(TenantId(tenant), GroupName(name)): group
            for tenant, groups in document.groups.items()
            for name, group in groups.items()
        },
    )
