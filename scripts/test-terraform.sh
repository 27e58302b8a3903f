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
  mirror=$(realpath "$TF_PLUGINS")
  for folder in "$mirror"/registry.terraform.io/*/*/*/*/; do # OpenTofu asks for the same providers under another name
    link=$work/plugins/registry.opentofu.org/${folder#"$mirror"/registry.terraform.io/}
    mkdir -p "$(dirname "$link")"
    ln -s "$folder" "${link%/}"
  done
  printf 'provider_installation {\n' >"$work/terraform.rc"
  printf '  filesystem_mirror {\n    path = "%s"\n  }\n' "$mirror" "$work/plugins" >>"$work/terraform.rc"
  printf '}\n' >>"$work/terraform.rc"
  export TF_CLI_CONFIG_FILE=$work/terraform.rc
fi
export TF_IN_AUTOMATION=1 CHECKPOINT_DISABLE=1

"$terraform" fmt -check -recursive deploy/terraform
if command -v tflint >/dev/null; then
  tflint --chdir=deploy/terraform --recursive
else
  echo "test-terraform: tflint is not installed, its rules are not checked"
fi
# Fails for every reason but one: the provider cannot be installed.
init() {
  "$terraform" -chdir="$1" init -input=false -backend=false -no-color >"$work/init.log" 2>&1 && return
  tail -n 5 "$work/init.log"
  grep -q "provider packages" "$work/init.log" || { echo "test-terraform: failed to initialize $1" >&2; exit 1; }
  return 1
}
cp -R deploy/terraform/aws "$work/aws" # no lock files and plugins in the checkout
for folder in cluster shard examples/minimal examples/production; do
  init "$work/aws/$folder" || skip "the AWS provider cannot be installed; see above"
  echo "test-terraform: validating $folder"
  "$terraform" -chdir="$work/aws/$folder" validate -no-color
done
cp -R deploy "$work/deploy"
for cloud in google proxmox; do
  for folder in cluster shard examples/minimal examples/production; do
    where="$work/deploy/terraform/$cloud/$folder"
    init "$where" || { echo "test-terraform: $cloud is not validated: its provider cannot be installed"; break; }
    echo "test-terraform: validating $cloud/$folder"
    "$terraform" -chdir="$where" validate -no-color
  done
done
NSTANCE_TEST_TERRAFORM=$work/aws NSTANCE_TERRAFORM=$terraform "$python" -m pytest -q -rs --timeout 1500 tests/e2e/test_terraform_aws.py
