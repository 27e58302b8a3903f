"""Bad configurations: each fault is named with path, line and likely word, and all of them at once."""

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.config import errors, load
from nstance.config.errors import ConfigError, Problem
from nstance.config.model import settings

GOOD: dict[str, Any] = {
    "cluster": {"id": "main", "secrets": {"provider": "object-storage", "encryption_key": {"provider": "env"}}},
    "shard": {
        "infra": {"provider": "aws", "region": "r", "zone": "z"},
        "subnet_pools": {"front": ["subnet-1"], "back": ["subnet-2", "subnet-3"]},
        "dynamic_subnet_pools": ["front"],
    },
    "tenants": {"acme": {}},
    "load_balancers": {"lb": {"provider": "aws", "target_group_arns": ["arn:x"]}},
    "images": {"debian": {"provider": "aws", "filters": [{"name": "name", "values": ["debian-*"]}], "owners": ["1"]}},
    "certificates": {"web.server": {"kind": "server", "cn": "{{ .Instance.ID }}"}},
    "templates": {
        "web": {
            "kind": "web",
            "files": {
                "web.crt": {
                    "kind": "certificate",
                    "template": "web.server",
                    "key": {"source": "agent", "name": "web.pub"},
                },
                "web.env": {"kind": "env", "template": {"A": "{{ .Vars.a }}"}},
                "web.json": {"kind": "json", "template": {"a": [1, "{{ .Instance.IP4 }}"]}},
                "token": {"kind": "secret", "source": "web-token"},
                "blob": {"kind": "storage", "source": "blobs/{{ .Instance.ID }}"},
                "note": {"kind": "string", "template": "hi"},
            },
            "args": {"ImageId": "{{ .Image.debian }}"},
            "userdata": {"content": "#!/bin/sh\necho {{ .Nonce }}"},
            "subnet_pool": "front",
        }
    },
    "groups": {"acme": {"web": {"template": "web", "size": 2, "load_balancers": ["lb"], "drain_timeout": "1m"}}},
}
REMOVED = object()
FILES = "templates.web.files"
CHECKS = "templates.web.checks"


def found(text: str) -> tuple[Problem, ...]:
    try:
        load.load(text)
    except ConfigError as error:
        return error.problems
    return ()


def problems(text: str) -> tuple[Problem, ...]:
    all_of_them = found(text)
    assert all_of_them
    return all_of_them


def changed(path: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    *parents, last = path.split("/")
    at: Any = document
    for part in parents:
        at = at.setdefault(part, {}) if isinstance(at, dict) else at[int(part)]
    if value is REMOVED:
        del at[last]
    else:
        at[last] = value
    return document


def test_the_good_one_is_good() -> None:
    load.load(json.dumps(GOOD))


@pytest.mark.parametrize(
    ("path", "value", "place", "says"),
    [
        # IDs
        *(
            ("cluster/id", bad, "cluster.id", "expected a name of lowercase letters")
            for bad in [
                "Main",
                "a--b",
                "a" * 33,
                "-a",
                "a-",
                "",
                "😀",
                "a\n",
                "%2e%2e",
                "../x",
                "a_b",
                "{{ .X }}",
                "${A}",
            ]
        ),
        ("shard/id", "A", "shard.id", "expected a name"),
        ("tenants/ACME", {}, "tenants.ACME", "expected a name"),
        ("groups/acme/Web", {"template": "web"}, "groups.acme.Web", "expected a name"),
        ("shard/subnet_pools/a_b", ["x"], "shard.subnet_pools.a_b", "expected a name"),
        ("templates/web/kind", "webs", "templates.web.kind", "three lowercase letters"),
        ("templates/web/kind", "opr", "templates.web.kind", "reserved for operators"),
        # shapes
        ("cluster", REMOVED, "cluster", "expected this key, found none"),
        ("cluster/id", 7, "cluster.id", "expected text in quotes, found the number 7"),
        ("shard", [], "shard", "expected an object, found a list"),
        ("shard/infra/provider", "azure", "shard.infra.provider", 'expected "process", "tmux"'),
        ("shard/create_concurrency", 0, "shard.create_concurrency", "expected a number of at least 1"),
        ("shard/create_concurrency", "8", "shard.create_concurrency", "expected a whole number, found text"),
        ("shard/create_concurrency", True, "shard.create_concurrency", "expected a whole number, found true"),
        ("groups/acme/web/size", -1, "groups.acme.web.size", "expected a number of at least 0"),
        ("groups/acme/web/size", 2**31, "groups.acme.web.size", "expected a number of at most 10000"),
        ("groups/acme/web/size", 1.5, "groups.acme.web.size", "expected a whole number"),
        ("groups/acme/web/vars", {"a": 1}, "groups.acme.web.vars.a", "expected text in quotes"),
        ("groups/acme/web/vars", {"a": "x" * 2**20}, "groups.acme.web.vars.a", "expected at most 65,536 characters"),
        ("groups/acme/web/vars", {"a b": "x"}, 'groups.acme.web.vars["a b"]', "expected a variable name"),
        ("groups/acme/web/load_balancers", "lb", "groups.acme.web.load_balancers", "expected a list"),
        ("groups/acme/web/userdata", {}, "groups.acme.web.userdata", "expected no such key"),
        # prices
        ("shard/prices", {"currency": "EUR"}, "shard.prices.hourly", "expected this key, found none"),
        ("shard/prices", {"hourly": {"m7": -1}}, "shard.prices.hourly.m7", "expected a price per hour from 0"),
        ("shard/prices", {"hourly": {"m7": "0.1"}}, "shard.prices.hourly.m7", "expected an object, found text"),
        ("shard/prices", {"hourly": {"m7": True}}, "shard.prices.hourly.m7", "expected an object, found true"),
        ("shard/prices", {"hourly": {"m7": {"spott": 1}}}, "shard.prices.hourly.m7.spott", "expected no such key"),
        ("shard/prices", {"hourly": {"m7": {"spot": "1"}}}, "shard.prices.hourly.m7.spot", "price per hour"),
        ("shard/prices", {"hourly": {}, "currency": "US $"}, "shard.prices.currency", "expected a name of letters"),
        # durations
        ("shard/request_timeout", 5, "shard.request_timeout", "expected a duration with its unit"),
        ("shard/request_timeout", "5", "shard.request_timeout", "expected a duration such as"),
        ("shard/request_timeout", "-5s", "shard.request_timeout", "without a sign"),
        ("shard/request_timeout", "0", "shard.request_timeout", "longer than 0"),
        ("shard/request_timeout", "1000000d", "shard.request_timeout", "100 years"),
        ("groups/acme/web/drain_timeout", True, "groups.acme.web.drain_timeout", "expected a duration"),
        ("certificates/web.server/ttl", 0, 'certificates["web.server"].ttl', "above 0"),
        ("certificates/web.server/ttl", "0", 'certificates["web.server"].ttl', "longer than 0"),
        # rules inside a block
        ("shard/bind", {"agent_addr": ":8990"}, "shard.bind", "expected distinct bind addresses"),
        ("shard/bind", {"agent_addr": "8994"}, "shard.bind.agent_addr", "expected host:port"),
        (
            "shard/advertise",
            {"agent_addr": "a:1,a:1"},
            "shard.advertise.agent_addr",
            "each address only once in the list",
        ),
        ("shard/expiry", {"eligible_age": "2d", "forced_age": "2d"}, "shard.expiry", "eligible_age to be shorter"),
        (
            "shard/garbage_collection",
            {"interval": "5m"},
            "shard.garbage_collection",
            "registration_timeout to be longer",
        ),
        ("shard/health", {"suspect_after": "1m"}, "shard.health", "suspect_after to be shorter"),
        ("shard/leader_election", {"heartbeat": "1s", "promise": "2s"}, "shard.leader_election", "three heartbeats"),
        ("shard/leader_election", {"crash_wait": "2s"}, "shard.leader_election", "crash_wait to be from"),
        ("shard/leader_election", {"crash_wait": "200ms"}, "shard.leader_election", "crash_wait to be from"),
        ("shard/leader_election", {"alone": {"renewal": "1m"}}, "shard.leader_election.alone", "shorter than lease"),
        ("shard/error_exit_jitter", {"min_delay": "1m"}, "shard.error_exit_jitter", "min_delay to be at most"),
        ("cluster/secrets", {"provider": "object-storage"}, "cluster.secrets", "expected an encryption_key"),
        ("cluster/secrets/provider", "aws-parameter-store", "cluster.secrets", "expected no encryption key"),
        (
            "cluster/secrets",
            {"provider": "file", "encryption_key": None},
            "cluster.secrets",
            "to seal the cluster's CA",
        ),
        ("cluster/secrets/encryption_key/provider", "file", "cluster.secrets.encryption_key", "expected a source"),
        ("cluster/secrets", {"provider": "google-secret-manager"}, "cluster.secrets", "expected a project_id"),
        ("cluster/storage", {"provider": "s3"}, "cluster.storage", "expected a bucket"),
        ("cluster/storage", {"prefix": "/abs"}, "cluster.storage.prefix", "expected a key prefix"),
        ("cluster/storage", {"prefix": "a/../b"}, "cluster.storage.prefix", "expected a key prefix"),
        ("groups/acme/web/update", {"max_surge": 0}, "groups.acme.web.update", "no instance can be replaced"),
        ("templates/web/userdata", {"source": "url", "content": "file:///etc"}, "templates.web.userdata", "https://"),
        ("load_balancers/lb", {"provider": "gcp"}, "load_balancers.lb", "expected an instance_group_name"),
        ("load_balancers/lb", {"provider": "webhook"}, "load_balancers.lb", "expected a url, and no path"),
        ("load_balancers/lb", {"provider": "file", "path": "members"}, "load_balancers.lb", "an absolute path"),
        ("load_balancers/lb", {"provider": "file", "path": "/m", "auth": "token"}, "load_balancers.lb", "no webhook"),
        ("load_balancers/lb", {"provider": "memory", "port": 80}, "load_balancers.lb", "keeps the members"),
        ("load_balancers/lb/url", "https://lb.internal", "load_balancers.lb", "this is no webhook"),
        (
            "load_balancers/lb",
            {"provider": "webhook", "url": "http://lb.internal/members"},
            "load_balancers.lb.url",
            "expected https",
        ),
        (
            "load_balancers/lb",
            {"provider": "webhook", "url": "https://me:secret@lb.internal/"},
            "load_balancers.lb.url",
            "expected a URL",
        ),
        (
            "load_balancers/lb",
            {"provider": "webhook", "url": "https://lb.internal/", "timeout": "2m"},
            "load_balancers.lb.timeout",
            "",
        ),
        (
            "load_balancers/lb",
            {"provider": "webhook", "url": "https://lb.internal/", "secret": "registration-nonce.key"},
            "load_balancers.lb.secret",
            "signs registration nonces",
        ),
        ("images/debian", {"provider": "aws"}, "images.debian", "expected filters or a fallback"),
        # files
        ("templates/web/files/..", {"kind": "string", "template": ""}, f'{FILES}[".."]', "plain file name"),
        ("templates/web/files/a\x00b", {"kind": "string", "template": ""}, f'{FILES}["a\\u0000b"]', "plain file name"),
        ("templates/web/files/NOTE", {"kind": "string", "template": ""}, FILES, "differ by more than case"),
        ("templates/web/files/x", {"kind": "text"}, f"{FILES}.x.kind", 'expected "certificate", "secret"'),
        ("templates/web/files/x", {}, f"{FILES}.x.kind", "found null"),
        ("templates/web/files/x", 3, f"{FILES}.x", "expected an object"),
        ("templates/web/files/web.env/template", {"A": 1}, f'{FILES}["web.env"].template.A', "expected text in quotes"),
        (
            "templates/web/files/web.env/template",
            {"A B": "1"},
            f'{FILES}["web.env"].template["A B"]',
            "environment variable",
        ),
        ("templates/web/files/web.json/template", [1], f'{FILES}["web.json"].template', "expected an object"),
        ("templates/web/files/web.crt/key/name", "web.key", f'{FILES}["web.crt"].key.name', 'ends in ".pub"'),
        ("templates/web/files/web.crt/key/source", "server", f'{FILES}["web.crt"].key.source', 'expected "agent"'),
        ("templates/web/files/token/source", "registration-nonce.key", f"{FILES}.token.source", "another secret than"),
        ("templates/web/files/token/source", "../x", f"{FILES}.token.source", "a secret's name"),
        (
            "templates/web/files",
            {str(n): {"kind": "string", "template": ""} for n in range(257)},
            FILES,
            "at most 256 files",
        ),
        # checks
        (
            "templates/web/checks/a",
            {"kind": "grpc"},
            f"{CHECKS}.a.kind",
            'expected "http", "tcp", "command" or "systemd"',
        ),
        ("templates/web/checks/a", 3, f"{CHECKS}.a", "expected an object"),
        ("templates/web/checks/a", {"kind": "tcp"}, f"{CHECKS}.a.port", "expected this key"),
        ("templates/web/checks/a", {"kind": "tcp", "port": 0}, f"{CHECKS}.a.port", "at least 1"),
        ("templates/web/checks/a", {"kind": "tcp", "port": 70_000}, f"{CHECKS}.a.port", "at most 65535"),
        ("templates/web/checks/a", {"kind": "tcp", "port": 1, "interval": "1ms"}, f"{CHECKS}.a.interval", "100ms"),
        ("templates/web/checks/a", {"kind": "tcp", "port": 1, "timeout": "1h"}, f"{CHECKS}.a.timeout", "at most 5m"),
        ("templates/web/checks/a", {"kind": "tcp", "port": 1, "failures": 0}, f"{CHECKS}.a.failures", "at least 1"),
        ("templates/web/checks/a", {"kind": "tcp", "port": 1, "path": "/"}, f"{CHECKS}.a.path", "no such key"),
        ("templates/web/checks/a", {"kind": "http", "port": 1, "path": "x"}, f"{CHECKS}.a.path", "starts with /"),
        ("templates/web/checks/a", {"kind": "http", "port": 1, "path": "/\r\nx"}, f"{CHECKS}.a.path", "starts with /"),
        ("templates/web/checks/a", {"kind": "http", "port": 1, "tls": 1}, f"{CHECKS}.a.tls", "true or false"),
        ("templates/web/checks/a", {"kind": "command", "argv": []}, f"{CHECKS}.a.argv", "a program and its arguments"),
        ("templates/web/checks/a", {"kind": "command", "argv": ["a", 1]}, f"{CHECKS}.a.argv[1]", "text in quotes"),
        ("templates/web/checks/a", {"kind": "command", "argv": ["a"] * 65}, f"{CHECKS}.a.argv", "at most 64 arguments"),
        ("templates/web/checks/a", {"kind": "command", "argv": ["a\0"]}, f"{CHECKS}.a.argv[0]", "null character"),
        ("templates/web/checks/a", {"kind": "systemd", "unit": "-x"}, f"{CHECKS}.a.unit", "a systemd unit"),
        ("templates/web/checks/a b", {"kind": "tcp", "port": 1}, f'{CHECKS}["a b"]', "a check's name"),
        ("templates/web/checks/unhealthy_after", 5, f"{CHECKS}.unhealthy_after", "expected a duration"),
        ("templates/web/checks/unhealthy_after", "5m", CHECKS, "expected at least one check with unhealthy_after"),
        (
            "templates/web/checks",
            {str(n): {"kind": "tcp", "port": 1} for n in range(33)},
            CHECKS,
            "at most 32 checks, found 33",
        ),
        # references
        ("groups/acme/web/template", "wbe", "groups.acme.web.template", "expected the name of a template"),
        ("groups/acme/web/subnet_pool", "bck", "groups.acme.web.subnet_pool", "expected the name of a subnet pool"),
        ("templates/web/subnet_pool", "nope", "templates.web.subnet_pool", "expected the name of a subnet pool"),
        ("shard/dynamic_subnet_pools", ["x"], "shard.dynamic_subnet_pools[0]", "expected the name of a subnet pool"),
        (
            "groups/acme/web/load_balancers",
            ["x"],
            "groups.acme.web.load_balancers[0]",
            "expected the name of a load balancer",
        ),
        (
            "templates/web/files/web.crt/template",
            "web",
            f'{FILES}["web.crt"].template',
            "expected the name of a certificate",
        ),
        (
            "templates/web/files/web.crt/template",
            "ca",
            f'{FILES}["web.crt"].template',
            "expected the name of a certificate",
        ),
        (
            "templates/web/args/ImageId",
            "{{ .Image.debain }}",
            "templates.web.args.ImageId",
            "expected the name of an image",
        ),
        ("groups/other", {}, "groups.other", "expected a tenant"),
        ("tenants/default", {}, "tenants.default", "always exists"),
        ("tenants/acme", {"max": 3}, "tenants.acme.max", "expected no such key"),
        ("shard/subnet_pools/third", ["subnet-2"], "shard.subnet_pools.third[0]", "in one pool only"),
        ("shard/subnet_pools/back", ["subnet-2", "subnet-2"], "shard.subnet_pools.back[1]", "in one pool only"),
        ("shard/subnet_pools/back", [], "shard.subnet_pools.back", "at least one subnet"),
        ("templates/web/subnet_pool", REMOVED, "groups.acme.web.subnet_pool", "the shard has 2 pools"),
        ("templates/web/registration_timeout", "1m", "templates.web.registration_timeout", "longer than the shard's"),
        # certificates
        ("certificates/web.server/kind", REMOVED, 'certificates["web.server"].kind', '"server", "client"'),
        ("certificates/web.server/kind", "peer", 'certificates["web.server"].kind', '"server", "client"'),
        ("certificates/web.server/kind", ["client", "client"], 'certificates["web.server"].kind', '"server", "client"'),
        (
            "certificates/web.server/uri",
            ["nstance://x"],
            'certificates["web.server"].uri[0]',
            "a scheme other than nstance://",
        ),
        ("certificates/ca", {"kind": "server"}, "certificates.ca.kind", "only a subject and a ttl"),
        (
            "certificates/ca",
            {"cn": "{{ .Instance.ID }}"},
            "certificates.ca.cn",
            "expected a field that is available in this template",
        ),
        # templates
        ("certificates/web.server/cn", "{{ .Nonce }}", 'certificates["web.server"].cn', "userdata only"),
        (
            "certificates/web.server/cn",
            "{{ .Instance.Id }}",
            'certificates["web.server"].cn',
            "expected a field of .Instance",
        ),
        ("templates/web/files/note/template", "{{ if }}", f"{FILES}.note.template", "if"),
        ("templates/web/files/note/template", "{{ nope 1 }}", f"{FILES}.note.template", "nope"),
        ("templates/web/files/blob/source", "{{ .Secret }}", f"{FILES}.blob.source", "expected a field that"),
        ("templates/web/userdata/content", "{{", "templates.web.userdata.content", ""),
        ("defaults/args", {"A": [{"B": "{{ .X }}"}]}, "defaults.args.A[0].B", "expected a field that"),
        # the provider's own
        ("templates/web/args/UserData", "x", "templates.web.args.UserData", "Nstance sets it itself"),
        ("groups/acme/web/args", {"imageId": "x"}, "groups.acme.web.args.imageId", "spelled LikeThis"),
        ("shard/infra/options", {"dir": "x"}, "shard.infra.options.dir", "expected an option of the provider aws"),
        (
            "groups/acme/web/args",
            {"EbsOptimized": "yes"},
            "groups.acme.web.args.EbsOptimized",
            "expected true or false",
        ),
        (
            "groups/acme/web/args",
            {"SecurityGroupIds": "sg-1"},
            "groups.acme.web.args.SecurityGroupIds",
            "expected a list, found 'sg-1'",
        ),
        (
            "templates/web/userdata",
            {"content": "#!/bin/sh\n" + "x" * 17_000 + "{{ .Nonce }}"},
            "templates.web.userdata.content",
            'expected at most 16384 bytes for the provider aws, found 17010; set its encoding to "gzip"',
        ),
        (
            "templates/web/userdata",
            {"base": "agent", "content": "#!/bin/sh\n" + "x" * 13_000},
            "templates.web.userdata.content",
            "expected at most 16384 bytes for the provider aws, found 16810; set its encoding",
        ),
        ("shard/infra/options", {"launch_rate": 0}, "shard.infra.options.launch_rate", "expected a number above 0"),
        ("images/debian/ssm_parameter", "/aws/x", "images.debian", "no filters, beside an ssm_parameter"),
        ("shard/leader_network", {"interface_id": "eni"}, "shard.leader_network", "expected an ip or an ip6"),
        ("shard/leader_network", {"ip": "::1"}, "shard.leader_network.ip", "expected an IPv4 address"),
        (
            "load_balancers/lb",
            {"provider": "gcp", "instance_group_name": "g"},
            "groups.acme.web.load_balancers[0]",
            "aws",
        ),
    ],
)
def test_one_fault(path: str, value: object, place: str, says: str) -> None:
    these = problems(json.dumps(changed(path, value), indent=1))
    assert any(p.path == place and says in p.message and p.line and p.column for p in these), [str(p) for p in these]
    assert not any(re.search("pydantic|Input should|value_error|Traceback", str(p)) for p in these)
    assert all(len(str(p)) < 500 and str(p).isprintable() for p in these)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("shard/leader_network", {"ip": "10.0.0.1"}),
        ("shard/leader_network", {"ip": "10.0.0.1", "interface_id": "eni-1"}),
        ("images/debian", {"provider": "aws", "ssm_parameter": "/aws/service/debian/release/13/latest/arm64"}),
        ("templates/web/userdata", {"content": "x" * 17_000, "encoding": "gzip"}),
        ("shard/infra/options", {"endpoint": "http://127.0.0.1:4566", "launch_burst": 5, "launch_rate": 0.5}),
        ("groups/acme/web/args", {"CpuOptions": {"CoreCount": "{{ .Vars.cores }}"}, "KeyName": None}),
    ],
)
def test_what_aws_accepts(path: str, value: object) -> None:
    load.load(json.dumps(changed(path, value)))


def test_google_needs_an_ip_for_the_leader_address() -> None:
    document = changed("shard/leader_network", {"ip6": "fd00::1"})
    document["shard"]["infra"]["provider"] = "gcp"
    found = problems(json.dumps(document))
    assert any(p.path == "shard.leader_network.ip" and "needs it" in p.message for p in found)


@pytest.mark.parametrize(
    ("region", "zone", "expected"),
    [
        ("europe-west1", "europe", "expected a zone of Google such as"),
        ("europe-west1", "us-central1-a", "expected a zone of the region europe-west1"),
        ("europe-west1", "europe-west10-a", "expected a zone of the region europe-west1"),
        ("europe-west1", "europe-west1-b", ""),
    ],
)
def test_a_zone_of_google_is_one_of_the_region(region: str, zone: str, expected: str) -> None:
    document = changed("shard/infra", {"provider": "gcp", "region": region, "zone": zone})
    found = {p.path: p.message for p in problems(json.dumps(document))}
    assert found.get("shard.infra.zone", "")[: len(expected)] == expected
    assert bool(expected) == ("shard.infra.zone" in found)


@pytest.mark.parametrize(
    ("path", "value", "hint"),
    [
        ("shard/helth", {}, "health"),
        ("templates/web/args/ImageID", "x", "ImageId"),
        ("templates/web/args/MetadataOptions", {"HttpToken": "optional"}, "HttpTokens"),
        ("shard/infra/options", {"endpiont": "x"}, "endpoint"),
        ("shard/infra/provder", "x", "provider"),
        ("shard/infra/provider", "AWS", "aws"),
        ("templates/web/files/note/templat", "x", "template"),
        ("templates/web/files/web.crt/key/nam", "x", "name"),
        ("groups/acme/web/instancetype", "x", "instance_type"),
        ("groups/acme/web/template", "wbe", "web"),
        ("groups/acm", {}, "acme"),
        ("templates/web/args/ImageId", "{{ .Image.debain }}", "debian"),
        ("certificates/web.server/cn", "{{ .instance.ID }}", "Instance"),
        ("templates/web/files/note/kind", "strng", "string"),
        ("templates/web/checks/a", {"kind": "htp"}, "http"),
        ("templates/web/checks/a", {"kind": "tcp", "port": 1, "intervall": "1s"}, "interval"),
        ("images/debian/filters/0/vales", [], "values"),
        ("shard/qqqqqqqqq", 1, ""),
    ],
)
def test_the_likely_word(path: str, value: object, hint: str) -> None:
    these = problems(json.dumps(changed(path, value)))
    assert these[0].hint == hint
    assert ("did you mean" in str(these[0])) == bool(hint)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"StoragePool": "s", "TemplateName": "t"}, ""),
        ({"StoragePool": "s", "TemplateVMID": 9000}, ""),
        ({"TemplateName": "t"}, "args.StoragePool"),
        ({"StoragePool": "s"}, "exactly one of TemplateName and TemplateVMID"),
        ({"StoragePool": "s", "TemplateName": "t", "TemplateVMID": 1}, "exactly one of TemplateName and TemplateVMID"),
    ],
)
@pytest.mark.parametrize("groups", [{}, {"g": {"template": "t", "subnet_pool": "p"}}])
def test_proxmox_rules_hold_for_the_merged_arguments(args: dict[str, object], says: str, groups: object) -> None:
    first, *rest = args.items()
    text = json.dumps(
        {
            "cluster": {"id": "c"},
            "shard": {"infra": {"provider": "proxmox"}, "subnet_pools": {"p": ["vmbr0"]}},
            "defaults": {"args": dict([first])},
            "templates": {"t": {"kind": "abc", "args": dict(rest), "instance_type": "cpu:4,memory:8192,disk:50"}},
            "groups": groups,
        }
    )
    if says:
        assert any(says in str(p) for p in problems(text))
    else:
        load.load(text)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("templates/t/args/State", "/state", ""),
        ("templates/t/args/Stat", "/state", 'did you mean "State"?'),
        ("templates/t/args", {"State": "/state", "Image": "/image"}, "expected no Image beside State"),
        ("templates/t/instance_type", "small", "expected an instance type such as"),
        ("shard/infra/options/accel", "warp", "expected one of auto, kvm, tcg"),
        ("shard/infra/options/memory_mib", "4G", "expected a whole number of MiB"),
        ("shard/infra/options/bridg", "br0", 'did you mean "bridge"?'),
        ("shard/leader_network", {"ip": "10.0.0.1"}, "the provider qemu does not support one"),
    ],
)
def test_qemu_rules(path: str, value: object, says: str) -> None:
    """A group of this provider needs no subnet."""
    document: dict[str, Any] = {
        "cluster": {"id": "c"},
        "shard": {"infra": {"provider": "qemu", "options": {}}},
        "templates": {"t": {"kind": "abc", "args": {}, "instance_type": "cpu:1,memory:256"}},
        "groups": {"default": {"g": {"template": "t"}}},
    }
    *parents, name = path.split("/")
    place = document
    for parent in parents:
        place = place[parent]
    place[name] = value
    if says:
        assert any(says in str(each) for each in problems(json.dumps(document)))
    else:
        load.load(json.dumps(document))


def test_all_problems_at_once_in_the_order_of_the_text_with_their_places() -> None:
    text = """{
  // a comment, so that lines must be counted and not guessed
  "cluster": {"id": "Bad"},
  "shard": {"infra": {"provider": "memory"}, "helth": {},
    "bind": {"agent_addr": ":8990"}},
  "templates": {"web": {"kind": "web", "files": {
    "a": {"kind": "string", "template": "x\\t{{ .Foo }}"}}}},
  "groups": {"default": {"web": {"template": "wbe", "size": -1}}}, /* x */ "extra": 1,
}"""
    assert [(p.path, p.line, p.column) for p in problems(text)] == [
        ("cluster.id", 3, 21),
        ("shard.helth", 4, 46),
        ("shard.bind", 5, 13),
        ("templates.web.files.a.template", 7, 48),
        ("groups.default.web.template", 8, 46),
        ("groups.default.web.size", 8, 61),
        ("extra", 8, 76),
    ]


def test_problems_of_an_older_spelling_are_reported_in_that_spelling() -> None:
    text = """{
  "server": {
    "cluster_id": "Bad",
    "provider": {"knd": "tmux", "kind": "tmx"},
    "expiry": {"forced": "1d"}
  },
  "groups": {"web": {"template": "t", "sise": 1}}
}"""
    assert [(p.path, p.line, p.column, p.hint) for p in problems(text)] == [
        ("server.cluster_id", 3, 19, ""),
        ("server.provider.knd", 4, 18, "kind"),
        ("server.provider.kind", 4, 41, "tmux"),
        ("server.expiry.forced", 5, 16, "forced_age"),
        ("groups.web.template", 7, 34, ""),
        ("groups.web.sise", 7, 39, "size"),
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"server": {"provider": {"kind": "memory"}}, "shard": {}}', "server"),
        ('{"server": 3}', "server"),
        ('{"server": {"cluster_id": "a", "provider": {"kind": "memory"}}, "cluster": {"id": "b"}}', "cluster"),
        (
            '{"server": {"provider": {"kind": "memory"}}, "templates": {"t": {"kind": "abc"}},'
            '"groups": {"web": {"template": "t"}, "default": {"web": {"template": "t"}}}}',
            "groups.web",
        ),
    ],
)
def test_two_spellings_of_one_thing_are_refused(text: str, place: str) -> None:
    assert place in {p.path for p in problems(text)}


@pytest.mark.parametrize("text", ["[]", "null", "3", '"x"'])
def test_a_document_is_an_object(text: str) -> None:
    assert "expected an object" in problems(text)[0].message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cluster/secrets/encryption_key", "thisisatest32bytekey123456789012"),
        ("cluster/secrets/encryption_key/provider", "thisisatest32bytekey123456789012"),
        ("cluster/secrets/old_encryption_keys", ["thisisatest32bytekey123456789012"]),
        ("groups/acme/web/vars", "thisisatest32bytekey123456789012"),
    ],
)
def test_a_secret_in_the_wrong_place_is_not_repeated(path: str, value: object) -> None:
    assert not any("thisisatest" in str(p) for p in problems(json.dumps(changed(path, value))))


def test_too_many_groups_are_refused_before_they_are_validated() -> None:
    many = {f"g{n}": {"template": "t", "bad": 1} for n in range(settings.MAX_GROUPS + 1)}
    document = {**GOOD, "groups": {"default": many}}
    (problem,) = problems(json.dumps(document))
    assert problem.path == "groups"
    assert "10,000 groups" in problem.message


def test_the_most_groups_load() -> None:
    many = {f"g{n}": {"template": "web", "vars": {"n": str(n)}} for n in range(settings.MAX_GROUPS)}
    assert len(load.load(json.dumps({**GOOD, "groups": {"acme": many}})).groups) == settings.MAX_GROUPS


def test_a_flood_of_template_actions_is_refused_before_it_is_read() -> None:
    (problem,) = problems(json.dumps(changed("templates/web/files/note/template", "{{ .Foo }}" * 300_000)))
    assert "100,000 template actions" in problem.message


def test_ten_thousand_faults_are_reported_briefly() -> None:
    """Near matches are searched for a few problems only: over all of them it would take minutes."""
    templates = {f"template-{n}": GOOD["templates"]["web"] | {"files": {}} for n in range(1000)}
    many = {f"g{n}": {"template": f"tmplate-{n}"} for n in range(settings.MAX_GROUPS)}
    these = problems(json.dumps({**GOOD, "templates": templates, "groups": {"default": many}}))
    assert len(these) == errors.MAX_PROBLEMS + 1
    assert these[0].hint
    assert "9,000 more problems" in these[-1].message


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "web", "{{ .X", "{{ .Instance.ID }}", "5s", "a:1", "aws", "nstance"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "template", "a", "provider", "id", "files"]) | st.text(max_size=4),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def _paths(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    below: list[tuple[object, ...]] = [path]
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        below += _paths(child, (*path, key))
    return below


@given(st.sampled_from(_paths(GOOD)), _JSON, st.booleans())
def test_whatever_stands_in_any_place_is_accepted_or_explained(path: tuple[Any, ...], value: object, old: bool) -> None:
    """Never an unhandled exception, never a problem without a place."""
    document: Any = copy.deepcopy(GOOD)
    if path:
        at = document
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value
        if old and isinstance(document["groups"], dict) and "acme" in document["groups"]:
            document["groups"]["flat"] = document["groups"].pop("acme")
            document["server"] = document.pop("shard")
    else:
        document = value
    assert all(p.line >= 1 and p.column >= 1 and p.message for p in found(json.dumps(document)))


def test_a_fault_of_the_text_hides_no_other_problem() -> None:
    """One repeated key, or one NaN, and everything else is still said, in the order of the text."""
    text = """{
  "cluster": {"id": "main", "id": "other", "secrets": {"provider": "object-storage", "encryption_key": {"provider": "env"}}},
  "shard": {"infra": {"provider": "aws", "region": "r", "zone": "z"}, "request_timeout": NaN, "oddity": 1},
  "templates": {"web": {"kind": "web"}},
  "groups": {"default": {"web": {"template": "wab", "size": -1}}}
}"""
    reported = [(problem.path, problem.line, problem.message.split(",")[0]) for problem in found(text)]
    assert [(path, line) for path, line, _ in reported] == [
        ("cluster.id", 2),
        ("shard.request_timeout", 3),
        ("shard.oddity", 3),
        ("groups.default.web.template", 5),
        ("groups.default.web.size", 5),
    ]
    assert reported[0][2] == "expected each key once"
    assert reported[1][2].startswith("expected a finite number")


@pytest.mark.parametrize(
    "source",
    ["cluster/ca.sealed", "shard/a/config.jsonc", "../x", "a/../cluster/ca.sealed", "/etc/passwd", ".nstance/x"],
)
def test_a_file_is_never_one_of_our_own_objects(source: str) -> None:
    config = copy.deepcopy(GOOD)
    config["templates"]["web"]["files"]["blob"]["source"] = source
    (problem,) = found(json.dumps(config))
    assert problem.path == f"{FILES}.blob.source"
    assert "expected an object of your own" in problem.message


def test_proxmox_has_no_leader_address_and_says_what_to_use() -> None:
    document = {
        "cluster": {"id": "x"},
        "shard": {"infra": {"provider": "proxmox"}, "leader_network": {"ip": "10.0.0.9", "interface_id": "net1"}},
    }
    [problem] = problems(json.dumps(document))
    assert problem.path == "shard.leader_network"
    assert "keepalived" in problem.message
    assert "docs/proxmox.md#leader-address" in problem.message
