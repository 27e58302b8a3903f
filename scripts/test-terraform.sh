#!/usr/bin/env bash
# `make test-terraform`: formats, validates and tests the Terraform modules, applies the minimal example to a stand-in for AWS,
# boots a server from what was applied, and destroys it. TERRAFORM=tofu tests with OpenTofu.
# Providers come from the registry, or from a mirror: TF_CLI_CONFIG_FILE, or TF_PLUGINS=/path/to/mirror.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
terraform=${TERRAFORM:-terraform}
skip() { echo "test-terraform: skipped: $1"; exit 0; }
command -v "$terraform" >/dev/null || skip "expected the program $terraform"
command -v bwrap >/dev/null || skip "expected bwrap (apt-get install bubblewrap)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ -n ${TF_PLUGINS:-} ]]; then
  [[ -d $TF_PLUGINS ]] || { echo "test-terraform: TF_PLUGINS: expected a folder, found $TF_PLUGINS" >&2; exit 1; }
  printf 'provider_installation {\n  filesystem_mirror {\n    path = "%s"\n  }\n}\n' "$TF_PLUGINS" >"$work/terraform.rc"
  export TF_CLI_CONFIG_FILE=$work/terraform.rc
fi
export TF_IN_AUTOMATION=1 CHECKPOINT_DISABLE=1

"$terraform" fmt -check -recursive deploy/terraform
if command -v tflint >/dev/null; then
  tflint --chdir=deploy/terraform/aws --recursive
else
  echo "test-terraform: tflint is not installed, its rules are not checked"
fi
cp -R deploy/terraform/aws "$work/aws" # no lock files and plugins in the checkout
for folder in cluster shard examples/minimal examples/production; do
  "$terraform" -chdir="$work/aws/$folder" init -input=false -backend=false -no-color >"$work/init.log" 2>&1 ||
    { tail -n 5 "$work/init.log"; skip "the AWS provider cannot be installed; see above"; }
  echo "test-terraform: validating $folder"
  "$terraform" -chdir="$work/aws/$folder" validate -no-color
done
cp -R deploy "$work/deploy"
for cloud in google proxmox; do
  for folder in cluster shard examples/minimal examples/production; do
    where="$work/deploy/terraform/$cloud/$folder"
    "$terraform" -chdir="$where" init -input=false -backend=false -no-color >"$work/init.log" 2>&1 ||
      { echo "test-terraform: $cloud is not validated: its provider cannot be installed"; break; }
    echo "test-terraform: validating $cloud/$folder"
    "$terraform" -chdir="$where" validate -no-color
  done
done
NSTANCE_TEST_TERRAFORM=$work/aws NSTANCE_TERRAFORM=$terraform "$python" -m pytest -q -rs --timeout 1500 tests/e2e/test_terraform_aws.py
