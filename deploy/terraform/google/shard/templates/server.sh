#!/bin/sh
# Installs and starts nstance-server. Rendered by Terraform; Google runs it at each boot.
set -eu
say() {
  echo "nstance: $1" >&2
}
new='' code=0
trap 'code=$?; rm -rf "$new"; [ "$code" = 0 ] || say "failed to set up the server (exit code $code)"' EXIT

url='${package_url}'
lib=/usr/local/lib/nstance-server
new=$(mktemp -d /usr/local/lib/.nstance-server.XXXXXX)
tries=1
until curl -fsSL --connect-timeout 5 --max-time 600 -o "$new/file" "$url"; do
  [ "$tries" -lt 20 ] || { say "failed to download the server from $${url%%\?*}"; exit 1; }
  tries=$((tries + 1))
  sleep 3
done
echo '${sha256}' " $new/file" | sha256sum -c - >/dev/null || { say "the server has another checksum"; exit 1; }
tar -xzf "$new/file" -C "$new"
rm -rf "$lib"
mv "$new/nstance-server" "$lib"
ln -sfn "$lib/bin/nstance-server" /usr/local/bin/nstance-server

getent passwd nstance >/dev/null || useradd --system --no-create-home --shell /usr/sbin/nologin nstance
cat >/etc/nstance-server.env <<'NSTANCE_ENV'
%{ for name, value in environment ~}
${name}=${value}
%{ endfor ~}
NSTANCE_ENV
cat >/etc/systemd/system/nstance-server.service <<'NSTANCE_UNIT'
[Unit]
Description=Nstance server
Documentation=https://nstance.dev
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User=nstance
EnvironmentFile=/etc/nstance-server.env
ExecStart=/usr/local/bin/nstance-server --shard ${shard} --storage gcs --bucket ${bucket} --log-json
CacheDirectory=nstance
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
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
NSTANCE_UNIT
systemctl daemon-reload
systemctl enable --now nstance-server.service
