#!/bin/sh
# Builds a minimal Debian guest with the agent for the provider `qemu`, and saves the state of a booted one.
#   DIR=/var/cache/nstance-vm scripts/build-vm-image.sh
# The folder is outside the checkout. A second run builds only what has changed.
set -eu
cd "$(dirname "$0")/.."

dir=${DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/nstance/vm}
python=${PYTHON:-.venv/bin/python}
suite=bookworm
guest_python=3.11
packages=python3,busybox-static
# In the order in which they are loaded: a module comes after those that it needs.
modules="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk failover net_failover \
  virtio_net rng-core virtio-rng cdrom isofs pvpanic pvpanic-mmio pvpanic-pci button evdev"

missing=
for tool in mmdebstrap mkfs.ext4 qemu-img qemu-system-x86_64; do
  command -v "$tool" >/dev/null || missing="$missing $tool"
done
if [ -n "$missing" ]; then
  echo "vm-image: skipped, because these programs are missing:$missing" >&2
  echo "vm-image: on Debian: apt-get install mmdebstrap e2fsprogs qemu-system-x86 qemu-utils" >&2
  exit 0
fi
if [ "$(uname -m)" != x86_64 ]; then
  echo "vm-image: skipped, because the guest is for x86_64 and this machine is $(uname -m)" >&2
  exit 0
fi

mkdir -p "$dir"
work=$(mktemp -d "$dir/.building.XXXXXX")
trap 'rm -rf "$work"' EXIT

# 1. Debian's packages, its cloud kernel and an initramfs with a few of its modules.
made_of=$(echo "$suite $packages $modules" | cat - deploy/vm/initramfs-init.sh | sha256sum | cut -c1-12)
base="$dir/debian-$made_of.tar"
if [ ! -s "$base" ]; then
  echo "vm-image: 1/4 installing Debian $suite (a few minutes)"
  cat > "$work/kernel.sh" <<END
set -eu
cd /tmp
kernel=\$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\).*/\1/p' | head -n 1)
apt-get -q download "\$kernel" >/dev/null
dpkg-deb -x linux-image-*.deb kernel
mkdir -p initramfs/bin initramfs/modules initramfs/proc initramfs/sys initramfs/dev initramfs/root
cp /bin/busybox initramfs/bin/
cp initramfs-init.sh initramfs/init
chmod 755 initramfs/init
for module in $modules; do
  found=\$(find kernel -name "\$module.ko" -o -name "\$(echo "\$module" | tr _ -).ko" | head -n 1)
  [ -n "\$found" ] || continue
  cp "\$found" "initramfs/modules/\$module.ko"
  echo "\$module.ko" >> initramfs/modules/order
done
cp kernel/boot/vmlinuz-* /boot/vmlinuz
cp kernel/boot/config-* /boot/config
(cd initramfs && find . | busybox cpio -o -H newc | gzip -9) > /boot/initrd.gz
rm -rf /tmp/kernel /tmp/initramfs /tmp/initramfs-init.sh /tmp/kernel.sh /tmp/*.deb
END
  mmdebstrap --quiet --variant=minbase --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook="upload $work/kernel.sh /tmp/kernel.sh" \
    --customize-hook='upload deploy/vm/initramfs-init.sh /tmp/initramfs-init.sh' \
    --customize-hook='chroot "$1" sh /tmp/kernel.sh' \
    "$suite" "$work/debian.tar"
  mv "$work/debian.tar" "$base"
fi

# 2. The agent and what it needs, for the Python of the guest.
echo "vm-image: 2/4 adding the agent"
mkdir "$work/root"
tar -C "$work/root" -xf "$base"
site="$work/root/usr/lib/nstance"
requirements=$("$python" -c 'import tomllib
for each in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["agent"]: print(each)')
echo "$requirements" > "$work/requirements.txt"
"$python" -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt --target "$site" \
  --python-version "$guest_python" --only-binary=:all: --platform manylinux2014_x86_64 \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_34_x86_64 -r "$work/requirements.txt"
mkdir "$site/nstance"
for part in __init__.py clock.py key_pairs.py points.py streams.py agent model pki tasks telemetry v1 wire; do
  cp -R "src/nstance/$part" "$site/nstance/"
done
find "$site" -name __pycache__ -prune -exec rm -rf {} +
cp deploy/vm/guest.py deploy/vm/dhcp.sh deploy/vm/show-files.sh "$site/"
chmod 755 "$site/dhcp.sh" "$site/show-files.sh"
printf '#!/bin/sh\nexec /usr/bin/python3 -S -u /usr/lib/nstance/guest.py\n' > "$work/root/sbin/init"
chmod 755 "$work/root/sbin/init"
# Compiled in advance: a guest in emulation takes seconds for it. The paths are those of the guest.
chroot "$work/root" /usr/bin/python3 -m compileall -q -j 0 /usr/lib/nstance >/dev/null || true

# 3. The disk.
echo "vm-image: 3/4 writing the disk"
cp "$work/root/boot/vmlinuz" "$work/root/boot/initrd.gz" "$work/"
rm -rf "$work/root/boot" "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists"
mkdir -p "$work/root/boot" "$work/root/run" "$work/root/tmp" "$work/root/proc" "$work/root/sys" "$work/root/dev"
truncate -s 1G "$work/disk.raw"
mkfs.ext4 -q -F -E lazy_itable_init=1,nodiscard -d "$work/root" "$work/disk.raw"
qemu-img convert -f raw -O qcow2 "$work/disk.raw" "$work/nstance-guest.qcow2"
rm -rf "$dir/state"
mv "$work/vmlinuz" "$work/initrd.gz" "$work/nstance-guest.qcow2" "$dir/"

# 4. A booted machine that waits for its seed: VMs that are restored from it start in seconds.
echo "vm-image: 4/4 saving the state of a booted machine"
# no_timer_check: on a busy host an emulated timer is late, which the kernel takes for a broken one and hangs.
"$python" -m nstance.providers.qemu.save_state --image "$dir/nstance-guest.qcow2" --kernel "$dir/vmlinuz" \
  --initrd "$dir/initrd.gz" --append "console=ttyS0 quiet unknown_nmi_panic no_timer_check" --size cpu:1,memory:256 --timeout 900 \
  --until "nstance: waiting for the seed" "$dir/state"
echo "vm-image: ready in $dir"
