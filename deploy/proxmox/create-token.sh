#!/bin/sh
# Creates the roles, the user and the API token of nstance-server, with no more rights than docs/proxmox.md lists.
#   ISO_STORAGE=local DISK_STORAGES="local-lvm ceph" POOL= ./create-token.sh
# Run it on a node of the cluster as root. A second run corrects the rights and keeps the token.
set -eu

user=${NSTANCE_USER:-nstance@pve}
token=${NSTANCE_TOKEN:-server}
iso=${ISO_STORAGE:-local}
disks=${DISK_STORAGES:-local-lvm}
pool=${POOL:-}

command -v pvesh >/dev/null || { echo "create-token: expected pvesh: run this on a Proxmox VE node" >&2; exit 1; }
sh_api() { pvesh "$@" --output-format json; }
has() { # list, key, value
  found=$(sh_api get "$1") || exit 1
  printf '%s' "$found" | tr -d ' \n' | grep -qF "\"$2\":\"$3\""
}

role() { # name, privileges
  if has /access/roles roleid "$1"; then
    sh_api set "/access/roles/$1" --privs "$2" >/dev/null
  else
    sh_api create /access/roles --roleid "$1" --privs "$2" >/dev/null
  fi
}
allow() { sh_api set /access/acl --path "$1" --roles "$2" --users "$user" --propagate 1 >/dev/null; } # path, role

role NstanceVM "VM.Audit VM.Clone VM.Allocate VM.PowerMgmt VM.Config.CPU VM.Config.Memory VM.Config.Disk VM.Config.CDROM VM.Config.Network VM.Config.Options"
role NstanceDisk "Datastore.AllocateSpace Datastore.Audit"
role NstanceSeed "Datastore.AllocateTemplate Datastore.Allocate Datastore.Audit"
role NstanceNode "Sys.Audit"
role NstanceNet "SDN.Use"

has /access/users userid "$user" || sh_api create /access/users --userid "$user" --comment "nstance-server" >/dev/null

if [ -n "$pool" ]; then
  has /pools poolid "$pool" || sh_api create /pools --poolid "$pool" >/dev/null
  allow "/pool/$pool" NstanceVM
else
  allow /vms NstanceVM
fi
for storage in $disks; do
  [ "$storage" = "$iso" ] || allow "/storage/$storage" NstanceDisk
done
case " $disks " in
  *" $iso "*) role NstanceSeed "Datastore.AllocateTemplate Datastore.Allocate Datastore.AllocateSpace Datastore.Audit" ;;
esac
allow "/storage/$iso" NstanceSeed
allow /nodes NstanceNode
allow /sdn/zones NstanceNet

if has "/access/users/$user/token" tokenid "$token"; then
  echo "create-token: $user!$token exists already; remove it first if its secret is lost" >&2
  exit 0
fi
# The user has no other use, so the token has all of its rights.
answer=$(sh_api create "/access/users/$user/token/$token" --privsep 0)
secret=$(printf '%s' "$answer" | sed -n 's/.*"value" *: *"\([^"]*\)".*/\1/p')
[ -n "$secret" ] || { echo "create-token: expected the secret of the token, found none" >&2; exit 1; }
echo "PROXMOX_TOKEN_ID=$user!$token"
echo "PROXMOX_TOKEN_SECRET=$secret"
