#!/bin/sh
# Installs and starts nstance-server. Rendered by Terraform.
set -eu
say() {
  echo "nstance: $1" >&2
  { echo "nstance: $1" >>/dev/console; } 2>/dev/null || :
}
new='' code=0
trap 'code=$?; rm -rf "$new"; [ "$code" = 0 ] || say "failed to set up the server (exit code $code)"' EXIT

url='${package_url}'
lib=/usr/local/lib/nstance-server
new=$(mktemp -d /usr/local/lib/.nstance-server.XXXXXX)
fetch() {
  case $url in
    s3://*) aws s3 cp --only-show-errors "$url" "$new/file" ;;
    *) curl -fsSL --connect-timeout 5 --max-time 600 -o "$new/file" "$url" ;;
  esac
}
tries=1
until fetch; do
  [ "$tries" -lt 20 ] || { say "failed to download the server from $${url%%\?*}"; exit 1; }
  tries=$((tries + 1))
  sleep 3
done
echo '${sha256}' " $new/file" | sha256sum -c - >/dev/null || { say "the server has another checksum"; exit 1; }
tar -xzf "$new/file" -C "$new"
rm -rf "$lib"
mv "$new/nstance-server" "$lib"
ln -sfn "$lib/bin/nstance-server" /usr/local/bin/nstance-server
! command -v restorecon >/dev/null || restorecon -R "$lib"

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
ExecStart=/usr/local/bin/nstance-server --shard ${shard} --bucket ${bucket}%{ if key_prefix != "" } --prefix ${key_prefix}%{ endif } --log-json
StandardOutput=append:/var/log/nstance/server.log
StandardError=inherit
LogsDirectory=nstance
CacheDirectory=nstance
Restart=always
RestartSec=2s
TimeoutStopSec=20s
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictNamespaces=yes
RestrictSUIDSGID=yes
LockPersonality=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
NSTANCE_UNIT
cat >/etc/logrotate.d/nstance-server <<'NSTANCE_ROTATE'
/var/log/nstance/*.log {
  daily
  rotate 3
  maxsize 100M
  compress
  copytruncate
  missingok
}
NSTANCE_ROTATE

systemctl daemon-reload
systemctl enable --now nstance-server.service
%{ if log_group != "" ~}

# Logs are worth less than the server: without the CloudWatch agent it runs all the same.
(
  command -v amazon-cloudwatch-agent-ctl >/dev/null || dnf -q -y install amazon-cloudwatch-agent
  cat >/opt/aws/amazon-cloudwatch-agent/etc/nstance.json <<'NSTANCE_LOGS'
{"logs": {"logs_collected": {"files": {"collect_list": [
  {"file_path": "/var/log/nstance/server.log", "log_group_name": "${log_group}", "log_stream_name": "{instance_id}"}
]}}}}
NSTANCE_LOGS
  amazon-cloudwatch-agent-ctl -a fetch-config -m ec2 -s -c file:/opt/aws/amazon-cloudwatch-agent/etc/nstance.json
) || say "failed to set up logs in CloudWatch: the server's log is in /var/log/nstance"
%{ endif ~}
