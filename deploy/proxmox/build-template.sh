#!/bin/sh
# Makes a template from a cloud image, for TemplateName of the provider proxmox.
#   IMAGE_URL=https://cloud.debian.org/…/debian-13-genericcloud-amd64.qcow2 IMAGE_SHA512=… ./build-template.sh
# Run it on a node of the cluster as root. STORAGE holds the disk; IMPORT_STORAGE needs the content type "import" (PVE 8.2 or
# newer). On storage that nodes do not share, run it once on each node, with another VMID and the same NAME.
set -eu

name=${NAME:-debian-13}
vmid=${VMID:-9000}
node=${NODE:-$(hostname -s)}
storage=${STORAGE:-local-lvm}
import=${IMPORT_STORAGE:-local}
bridge=${BRIDGE:-vmbr0}
url=${IMAGE_URL:?expected the address of a qcow2 image}
file="$name.qcow2"

command -v pvesh >/dev/null || { echo "build-template: expected pvesh: run this on a Proxmox VE node" >&2; exit 1; }
sh_api() { pvesh "$@" --output-format json; }
vm="/nodes/$node/qemu/$vmid"

wait_for() { # task
  task=$(printf '%s' "$1" | tr -d '"\n')
  while :; do
    status=$(sh_api get "/nodes/$node/tasks/$task/status")
    case $status in *'"stopped"'*) break ;; esac
    sleep 1
  done
  case $status in
    *'"exitstatus"'*'"OK"'* | *'"exitstatus"'*WARNINGS*) ;;
    *) echo "build-template: task $task failed: $status" >&2; return 1 ;;
  esac
}

if found=$(sh_api get "$vm/config" 2>/dev/null); then
  case $found in
    *'"template"'*) echo "build-template: template $vmid is there already"; exit 0 ;;
    *) echo "build-template: expected VMID $vmid to be free, found a VM: choose another VMID" >&2; exit 1 ;;
  esac
fi

echo "build-template: downloading the image"
set -- --content import --filename "$file" --url "$url"
[ -z "${IMAGE_SHA512:-}" ] || set -- "$@" --checksum-algorithm sha512 --checksum "$IMAGE_SHA512"
sh_api get "/nodes/$node/storage/$import/content/$import:import/$file" >/dev/null 2>&1 ||
  wait_for "$(sh_api create "/nodes/$node/storage/$import/download-url" "$@")"

echo "build-template: creating VM $vmid"
# A half-made VM would stop the next run, so it is removed when a step fails.
code=0
trap 'code=$?; [ "$code" = 0 ] || sh_api delete "$vm" --purge 1 >/dev/null 2>&1 || :; exit "$code"' EXIT
wait_for "$(sh_api create "/nodes/$node/qemu" --vmid "$vmid" --name "$name" --memory 512 --cores 1 --cpu host --ostype l26 \
  --scsihw virtio-scsi-single --scsi0 "$storage:0,import-from=$import:import/$file" --boot order=scsi0 \
  --net0 "virtio,bridge=$bridge" --serial0 socket --agent enabled=1)"
# No cloud-init drive: each VM gets an ISO of its own.
answer=$(sh_api create "$vm/template")
case $answer in *UPID*) wait_for "$answer" ;; esac
echo "build-template: template $name is VM $vmid on $node"
