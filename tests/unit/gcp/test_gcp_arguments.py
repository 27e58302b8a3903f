"""Arguments of an instance: checked by Google's description before anything is made."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nstance.config import load
from nstance.config.errors import ConfigError
from nstance.gcp import arguments
from nstance.gcp.arguments import INSTANCE

ROOT = Path(__file__).parents[3]


def test_the_table_is_that_of_googles_description() -> None:
    spec = importlib.util.spec_from_file_location("gcp_fields", ROOT / "scripts/gcp_fields.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    table = made.fields(made.document()["schemas"], {"$ref": "Instance"})
    assert table == INSTANCE, "run: make gcp-fields"


@pytest.mark.parametrize(
    ("args", "path", "says"),
    [
        ({"SourceImge": "x"}, ("SourceImge",), "SourceImage"),
        (
            {"ShieldedInstanceConfig": {"EnableSecureBot": True}},
            ("ShieldedInstanceConfig", "EnableSecureBot"),
            "EnableSecureBoot",
        ),
        ({"NetworkTags": "web"}, ("NetworkTags",), "expected a list"),
        ({"Disks": [{"Boot": "yes"}]}, ("Disks", 0, "Boot"), "expected true or false"),
        ({"Scheduling": []}, ("Scheduling",), "expected an object"),
        ({"Labels": {"any": 1}}, ("Labels", "any"), "expected a string"),
        ({"Status": "RUNNING"}, ("Status",), "expected a field"),
        ({"DiskSizeGb": True}, ("DiskSizeGb",), "expected a whole number"),
        ({"DiskSizeGb": "big"}, ("DiskSizeGb",), "expected a whole number"),
        ({"DiskSizeGb": -5}, ("DiskSizeGb",), "expected a size in GB"),
        ({"NetworkTags": ["web", "Bad_Tag"]}, ("NetworkTags", 1), "in a network tag"),
        ({"ProvisioningModel": "SPOTT"}, ("ProvisioningModel",), "expected SPOT, STANDARD"),
        ({"ServiceAccount": "workers"}, ("ServiceAccount",), "an e-mail address"),
        ({"Labels": {"Team": "blue"}}, ("Labels", "Team"), "expected lower-case letters"),
        ({"Labels": {"team": "Blue Team"}}, ("Labels", "team"), "expected lower-case letters"),
    ],
)
def test_faults_have_their_path(args: dict[str, Any], path: tuple[object, ...], says: str) -> None:
    (fault,) = arguments.find_faults(args)
    assert fault.path == path
    assert says in fault.message or says in fault.known


def test_what_google_accepts() -> None:
    args = {
        "SourceImage": "{{ .Image.debian }}",
        "Disks": [{"Boot": True, "InitializeParams": {"DiskSizeGb": 10, "Labels": {"a_b": "x"}}}],
        "DiskSizeGb": "20",
        "Labels": {"team": "{{ .Vars.team }}", "empty": ""},
        "Metadata": {"a-key": "value"},
        "CanIpForward": None,
        "ConfidentialInstanceConfig": {"enableConfidentialCompute": True},
        "DeletionProtection": "{{ .Vars.protect }}",
    }
    assert list(arguments.find_faults(args)) == []
    made = arguments.resource(args)
    assert made["disks"] == [{"boot": True, "initializeParams": {"diskSizeGb": "10", "labels": {"a_b": "x"}}}]
    assert "canIpForward" not in made


def test_a_misspelled_argument_is_refused_with_its_place_and_the_nearest_name() -> None:
    text = (ROOT / "examples/config-gcp.jsonc").read_text()
    load.load(text)
    with pytest.raises(ConfigError, match=r'templates\.web\.args\.NetworkTgs .*"NetworkTags"'):
        load.load(text.replace('"NetworkTags"', '"NetworkTgs"'))
    with pytest.raises(ConfigError, match=r"templates\.web\.args\.MachineType .*Nstance sets it itself"):
        load.load(text.replace('"NetworkTags": ["web"]', '"MachineType": "x"'))
    with pytest.raises(ConfigError, match=r'shard\.infra\.zone .*europe-west1-b, found "europe-west1"'):
        load.load(text.replace('"europe-west1-b"', '"europe-west1"'))
    with pytest.raises(ConfigError, match=r'instance_types?\S* .*such as e2-small, found "E2 small"'):
        load.load(text.replace('"n4-standard-2"', '"E2 small"'))
    with pytest.raises(ConfigError, match=r"args\.SourceImage .*needs a boot disk"):
        load.load(text.replace('"SourceImage": "{{ .Image.debian }}",', ""))
    with pytest.raises(ConfigError, match=r'shard\.infra\.options\.project .*"project_id"'):
        load.load(text.replace('"options": { "project_id"', '"options": { "project"'))


def test_the_table_is_loaded_only_for_google() -> None:
    code = (
        "import sys; from nstance.config import load; load.load(open(sys.argv[1]).read());"
        "sys.exit('nstance.gcp.arguments' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ROOT / "examples/config-aws.jsonc")], check=False)
    assert done.returncode == 0
