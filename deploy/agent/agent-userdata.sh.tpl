#!/bin/sh
# Userdata of an Nstance instance: installs the agent, writes its nonce and CA certificate, starts it, and waits for the
# first set of files. This is a template in Go's text/template syntax; the server renders it once for each instance.
#
# Vars of the group that it looks at:
#   AgentURL     where nstance-agent.pyz is (required); "{arch}" becomes x86_64 or aarch64
#   AgentSHA256  its checksum; without one the download is trusted as it comes
#   WaitTimeout  how long to wait for the first files (5m)
#   OnReceive    a command that the agent runs after each set of files
set -eu
umask 077

root=/opt/nstance-agent
arch=$(uname -m)
[ "$arch" != arm64 ] || arch=aarch64

install -d -m 0700 "$root" "$root/identity"
install -d -m 0750 "$root/keys" "$root/recv"

# A reboot runs this again on some clouds: a registered instance needs no nonce, and gets none.
if [ ! -s "$root/identity/identity.crt" ]; then
  printf '%s' {{ shquote .Nonce }} > "$root/identity/nonce.jwt.new"
  mv "$root/identity/nonce.jwt.new" "$root/identity/nonce.jwt"
  printf '%s' {{ shquote .Cluster.CACert }} > "$root/identity/ca.crt"
fi

cat > /etc/nstance-agent.env <<'NSTANCE_ENV'
NSTANCE_SERVER_REGISTRATION_ADDR={{ quote .Server.RegistrationAddr }}
NSTANCE_SERVER_AGENT_ADDR={{ quote .Server.AgentAddr }}
NSTANCE_INSTANCE_ID={{ quote .Instance.ID }}
NSTANCE_INSTANCE_KIND={{ quote .Instance.Kind }}
{{- if .Instance.Hostname }}
NSTANCE_INSTANCE_HOSTNAME={{ quote .Instance.Hostname }}
{{- end }}
{{- if eq .Provider.Kind "aws" "google" "gcp" "proxmox" }}
NSTANCE_PROVIDER={{ if eq .Provider.Kind "gcp" }}google{{ else }}{{ .Provider.Kind }}{{ end }}
{{- end }}
{{- with index .Vars "OnReceive" }}
NSTANCE_ON_RECEIVE={{ quote . }}
{{- end }}
NSTANCE_ENV

url={{ shquote (index .Vars "AgentURL") }}
if [ -z "$url" ]; then
  echo "nstance: the group has no var AgentURL, so there is nowhere to fetch the agent from" >&2
  exit 1
fi
url=$(printf '%s' "$url" | sed "s/{arch}/$arch/g")
new=$(mktemp /usr/local/bin/.nstance-agent.XXXXXX)
trap 'rm -f "$new"' EXIT
tries=0
until curl -fsSL --proto '=https,http' --connect-timeout 5 --max-time 300 -o "$new" "$url"; do
  tries=$((tries + 1))
  if [ "$tries" -ge 20 ]; then
    echo "nstance: cannot fetch the agent from $url" >&2
    exit 1
  fi
  sleep 3
done
{{- with index .Vars "AgentSHA256" }}
printf '%s  %s\n' {{ shquote . }} "$new" | sha256sum -c - >/dev/null
{{- end }}
chmod 0755 "$new"
mv "$new" /usr/local/bin/nstance-agent
trap - EXIT

cat > /etc/systemd/system/nstance-agent.service <<'NSTANCE_UNIT'
[Unit]
Description=Nstance agent
Documentation=https://nstance.dev
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
EnvironmentFile=/etc/nstance-agent.env
Environment=MALLOC_ARENA_MAX=1 SHIV_ROOT=/var/cache/nstance-agent
ExecStart=/usr/local/bin/nstance-agent
Restart=always
RestartSec=1s
TimeoutStopSec=5s
KillMode=mixed
OOMScoreAdjust=-900

UMask=0077
CacheDirectory=nstance-agent
CacheDirectoryMode=0700
ReadWritePaths=-/opt/nstance-agent
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
CapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_CHOWN
AmbientCapabilities=
MemoryMax=256M
TasksMax=64

[Install]
WantedBy=multi-user.target
NSTANCE_UNIT

cat > /etc/systemd/system/nstance-agent-shutdown.service <<'NSTANCE_UNIT'
[Unit]
Description=Notice of shutdown for the Nstance agent
After=nstance-agent.service
Requisite=nstance-agent.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop=-/bin/systemctl kill --kill-whom=main --signal=USR1 nstance-agent.service

[Install]
WantedBy=multi-user.target
NSTANCE_UNIT

chmod 0644 /etc/systemd/system/nstance-agent.service /etc/systemd/system/nstance-agent-shutdown.service
systemctl daemon-reload
systemctl enable --now nstance-agent.service nstance-agent-shutdown.service

# From here on the instance's keys and files are in $root/keys and $root/recv.
/usr/local/bin/nstance-agent wait --timeout {{ shquote (default "5m" (index .Vars "WaitTimeout")) }}
