#!/bin/busybox sh
# First program of the guest: loads the modules that the kernel needs to find its disk, mounts it and continues there.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in $(/bin/busybox cat /modules/order); do
  /bin/busybox insmod "/modules/$module" || echo "nstance: failed to load $module"
done
until [ -b /dev/vda ]; do
  /bin/busybox sleep 0.1
done
/bin/busybox mount -t ext4 -o noatime /dev/vda /root
for folder in proc sys dev; do
  /bin/busybox mount --move /$folder /root/$folder
done
exec /bin/busybox switch_root /root /sbin/init
