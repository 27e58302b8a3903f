#!/bin/sh
# Stands in for systemd in a sandbox without one: starts the command of a service with its environment file, and again when it
# ends. It knows what userdata scripts of this project use, and no dependencies.
set -eu
units=/etc/systemd/system
state=/run/services

value() { sed -n "s/^$2=-\{0,1\}//p" "$units/$1" | tail -n 1; }

start() {
  [ -f "$units/$1" ] || { echo "systemctl: expected the unit $units/$1, found none" >&2; exit 5; }
  [ "$(value "$1" Type)" != oneshot ] || return 0
  mkdir -p "$state" /var/log
  ! running "$1" || return 0
  (
    trap 'kill "$child" 2>/dev/null; exit 0' TERM
    # What the platform tells every service, as a VM finds it at a fixed address.
    # shellcheck disable=SC1091 # the file is made with the sandbox
    [ ! -f /run/platform.env ] || { set -a; . /run/platform.env; set +a; }
    environment=$(value "$1" EnvironmentFile)
    # shellcheck disable=SC1090 # the file is an argument of the unit
    [ -z "$environment" ] || { set -a; . "$environment"; set +a; }
    while :; do
      # shellcheck disable=SC2046,SC2091 # the words of ExecStart are arguments
      $(value "$1" ExecStart) &
      child=$!
      wait "$child" || :
      [ "$(value "$1" Restart)" = always ] || exit 0
      sleep 1
    done
  ) </dev/null >>"/var/log/$1.log" 2>&1 &
  echo $! >"$state/$1"
}

running() { [ -s "$state/$1" ] && kill -0 "$(cat "$state/$1")" 2>/dev/null; }

verb=${1:-}
[ $# = 0 ] || shift
case $verb in
  daemon-reload) ;;
  is-system-running) echo running ;;
  is-active) running "$1" ;;
  enable | start | restart)
    [ "$verb" != restart ] || for unit; do ! running "$unit" || kill "$(cat "$state/$unit")"; done
    for unit; do
      case $unit in
        -*) ;;
        *.service) start "$unit" ;;
        *) start "$unit.service" ;;
      esac
    done
    ;;
  stop) for unit; do ! running "$unit" || kill "$(cat "$state/$unit")"; done ;;
  *) echo "systemctl: expected daemon-reload, enable, start, restart, stop or is-active, found $verb" >&2; exit 1 ;;
esac
