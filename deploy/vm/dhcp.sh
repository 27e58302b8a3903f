#!/bin/busybox sh
# What udhcpc calls: sets the address, the route and the name servers.
[ "$1" = bound ] || [ "$1" = renew ] || exit 0
/bin/busybox ip addr flush dev "$interface"
/bin/busybox ip addr add "$ip/$mask" dev "$interface"
for each in $router; do
  /bin/busybox ip route replace default via "$each" dev "$interface"
done
: > /etc/resolv.conf
for each in $dns; do
  echo "nameserver $each" >> /etc/resolv.conf
done
