#!/bin/sh
# Installs and starts the Nstance agent. A Go template that the server renders for each instance; the group's own commands
# follow. A subshell, so that its settings do not reach them. See docs/images-and-userdata.md.
(
set -eu
umask 077
PATH=$PATH:/usr/local/bin
root=/opt/nstance-agent
lib=/usr/local/lib/nstance-agent
url={{ shquote .Agent.URL }}
version={{ shquote .Agent.Version }}
new=

say() {
  echo "nstance: $1" >&2
  { echo "nstance: $1" >>/dev/console; } 2>/dev/null || :
}
trap 'code=$?; rm -rf "$new"; [ "$code" = 0 ] || say "failed to set up the agent (exit code $code)"' EXIT

fetch() {
  if command -v curl >/dev/null; then curl -fsSL --connect-timeout 5 --max-time 300 -o "$1" "$url"
  elif command -v wget >/dev/null; then wget -q -T 30 -O "$1" "$url"
  else python3 -c 'import sys, urllib.request as r; r.urlretrieve(*sys.argv[1:])' "$url" "$1"
  fi
}

install -d -m 0700 "$root" "$root/identity"
install -d -m 0750 "$root/keys" "$root/recv"
# Some clouds run this at every boot: an instance with a certificate needs no nonce.
if [ ! -s "$root/identity/identity.crt" ]; then
  printf '%s' {{ shquote .Cluster.CACert }} >"$root/identity/ca.crt"
  printf '%s' {{ shquote .Nonce }} >"$root/identity/nonce.jwt.new"
  mv "$root/identity/nonce.jwt.new" "$root/identity/nonce.jwt"
fi
cat >/etc/nstance-agent.env <<'NSTANCE_ENV'
NSTANCE_SERVER_REGISTRATION_ADDR={{ quote .Server.RegistrationAddr }}
NSTANCE_SERVER_AGENT_ADDR={{ quote .Server.AgentAddr }}
NSTANCE_INSTANCE_ID={{ quote .Instance.ID }}
NSTANCE_INSTANCE_KIND={{ quote .Instance.Kind }}
{{- if .Instance.Hostname }}
NSTANCE_INSTANCE_HOSTNAME={{ quote .Instance.Hostname }}
{{- end }}
{{- if eq .Provider.Kind "aws" "google" "gcp" "proxmox" }}
NSTANCE_PROVIDER={{ if eq .Provider.Kind "gcp" }}google{{ else }}{{ .Provider.Kind }}{{ end }}
{{- else if eq .Provider.Kind "qemu" }}
NSTANCE_PROVIDER=none
{{- end }}
{{- with index .Vars "OnReceive" }}
NSTANCE_ON_RECEIVE={{ quote . }}
{{- end }}
NSTANCE_ENV

# The image's own agent, unless the configuration asks for another version.
agent=$(command -v nstance-agent || :)
if [ -n "$agent" ] && [ -n "$version" ]; then
  found=$("$agent" --version || :)
  [ "$found" = "nstance-agent $version" ] || { say "found $found, expected version $version"; agent=; }
fi
if [ -z "$agent" ]; then
  [ -n "$url" ] || { say "no agent in the image, and no agent.url in the configuration"; exit 1; }
  agent=/usr/local/bin/nstance-agent
  install -d -m 0755 /usr/local/bin /usr/local/lib
  new=$(mktemp -d /usr/local/lib/.nstance-agent.XXXXXX)
  tries=1
  until fetch "$new/file"; do
    [ "$tries" -lt 20 ] || { say "failed to download the agent from ${url%%\?*}"; exit 1; }
    tries=$((tries + 1))
    sleep 3
  done
{{- with .Agent.SHA256 }}
  echo {{ shquote . }} " $new/file" | sha256sum -c - >/dev/null || { say "the agent has another checksum"; exit 1; }
{{- end }}
  if gzip -t "$new/file" 2>/dev/null; then # a bundle with its own Python
    tar -xzf "$new/file" -C "$new"
    rm -rf "$lib"
    mv "$new/nstance-agent" "$lib"
    ln -sfn "$lib/bin/nstance-agent" "$agent"
    ! command -v restorecon >/dev/null || restorecon -R "$lib"
  else
    chmod 0755 "$new/file"
    mv "$new/file" "$agent"
  fi
fi

"$agent" install-units --program "$agent"
systemctl daemon-reload
systemctl enable --now nstance-agent.service nstance-agent-shutdown.service
# From here on the instance's keys and files are in $root/keys and $root/recv.
"$agent" wait --timeout {{ shquote (default "5m" (index .Vars "WaitTimeout")) }} || {
  say "$(journalctl -u nstance-agent.service -n 20 --no-pager -o cat 2>&1 || :)"
  exit 1
}
)
code=$?
[ "$code" = 0 ] || exit "$code"
