#!/bin/sh
# Installs nstance-server on a Debian or Ubuntu machine: a VM, a container, or any host that reaches the Proxmox API.
#   PACKAGE_URL=https://…/nstance-server-linux-amd64.tar.gz PACKAGE_SHA256=… SHARD=rack-1 STORAGE=s3 BUCKET=nstance \
#     PROXMOX_TOKEN_ID=… PROXMOX_TOKEN_SECRET=… ./install-server.sh
# A second run upgrades the program. ROOT=/some/folder installs there and starts nothing.
set -eu

root=${ROOT:-}
url=${PACKAGE_URL:?expected the address of nstance-server-linux-ARCH.tar.gz}
sha256=${PACKAGE_SHA256:?expected the checksum of the package}
shard=${SHARD:?expected the name of the shard}
bucket=${BUCKET:?expected the bucket}
lib=$root/usr/local/lib/nstance-server

for tool in curl sha256sum tar; do
  command -v "$tool" >/dev/null || { echo "install-server: expected $tool" >&2; exit 1; }
done
mkdir -p "$root/usr/local/lib" "$root/usr/local/bin" "$root/etc/systemd/system"
new=$(mktemp -d "$root/usr/local/lib/.nstance-server.XXXXXX")
trap 'rm -rf "$new"' EXIT
curl -fsSL --connect-timeout 5 --max-time 600 -o "$new/file" "$url"
echo "$sha256  $new/file" | sha256sum -c - >/dev/null || { echo "install-server: the package has another checksum" >&2; exit 1; }
tar -xzf "$new/file" -C "$new"
rm -rf "$lib"
mv "$new/nstance-server" "$lib"
ln -sfn /usr/local/lib/nstance-server/bin/nstance-server "$root/usr/local/bin/nstance-server"

# Secrets are readable by root only; systemd passes them on.
env_file=$root/etc/nstance-server.env
if [ ! -e "$env_file" ]; then
  (
    umask 077
    for name in PROXMOX_API_URL PROXMOX_TOKEN_ID PROXMOX_TOKEN_SECRET NSTANCE_ENCRYPTION_KEY AWS_REGION \
      AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_ENDPOINT_URL; do
      value=$(printenv "$name" || :)
      [ -z "$value" ] || printf '%s=%s\n' "$name" "$value"
    done >"$env_file"
  )
fi
cat >"$root/etc/systemd/system/nstance-server.service" <<UNIT
[Unit]
Description=Nstance server
Documentation=https://nstance.dev
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
DynamicUser=yes
EnvironmentFile=/etc/nstance-server.env
ExecStart=/usr/local/bin/nstance-server --shard $shard --storage ${STORAGE:-s3} --bucket $bucket --cachedir %C/nstance
CacheDirectory=nstance
StateDirectory=nstance
Restart=always
RestartSec=2s
TimeoutStopSec=20s
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK

[Install]
WantedBy=multi-user.target
UNIT
if [ -n "$root" ]; then
  echo "install-server: installed into $root"
  exit 0
fi
systemctl daemon-reload
systemctl enable nstance-server.service
systemctl restart nstance-server.service
echo "install-server: nstance-server runs; its log is in 'journalctl -u nstance-server'"
