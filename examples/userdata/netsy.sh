#!/bin/sh
# The own part of the userdata in the guide "Deploying Netsy to auto-scaled VMs using Nstance". The script that sets up the
# agent comes before it: the instance's keys and files are installed when this starts.
set -eu

# Install Netsy. `make dev-aws` has no such program and sets the var to a stand-in.
{{- $url := index .Vars "NetsyURL" }}
curl -fsSL {{ shquote (default "https://github.com/netsy-dev/netsy/releases/latest/download/netsy-linux-arm64" $url) }} \
  -o /usr/local/bin/netsy
chmod +x /usr/local/bin/netsy

# Create netsy user and directories
id -u netsy >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin netsy
install -d -m 750 /etc/netsy /etc/netsy/certs /var/lib/netsy

# Move Nstance-delivered files into place
RECV="${NSTANCE_RECV_DIR:-/opt/nstance-agent/recv}"
KEYS="${NSTANCE_KEYS_DIR:-/opt/nstance-agent/keys}"
IDENTITY="${NSTANCE_IDENTITY_DIR:-/opt/nstance-agent/identity}"
install -m 640 "$RECV/server.crt"        /etc/netsy/certs/server.crt
install -m 600 "$KEYS/netsy.server.key"  /etc/netsy/certs/server.key
install -m 640 "$RECV/peer.crt"          /etc/netsy/certs/peer.crt
install -m 600 "$KEYS/netsy.peer.key"    /etc/netsy/certs/peer.key
install -m 640 "$RECV/config.jsonc"      /etc/netsy/config.jsonc
install -m 640 "$RECV/netsy.env"         /etc/netsy/env
install -m 640 "$IDENTITY/ca.crt"        /etc/netsy/certs/ca.crt
# A sandbox has one user only; there the files stay root's.
chown -R netsy:netsy /etc/netsy /var/lib/netsy 2>/dev/null || echo "the files of Netsy stay root's"

# Install systemd unit
cat > /etc/systemd/system/netsy.service <<'EOF'
[Unit]
Description=Netsy
Wants=network-online.target
After=network-online.target nstance-agent.service

[Service]
Type=exec
Restart=always
User=netsy
Group=netsy
EnvironmentFile=/etc/netsy/env
ExecStart=/usr/local/bin/netsy

[Install]
WantedBy=multi-user.target
EOF

systemctl daemon-reload
systemctl enable --now netsy.service
