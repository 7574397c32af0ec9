#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# First process of the guest: finds the drive that holds Python, loads vfio, runs the script, powers off.
# The second serial line carries what the script prints; the first one the kernel's messages.
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs none /dev/shm
for module in irqbypass vfio vfio_virqfd vfio_iommu_type1 vfio-pci-core vfio-pci; do
  [ -e /modules/$module.ko ] && insmod /modules/$module.ko
done
tries=0
while ! grep -q tutti-root /sys/class/nvme/*/serial 2>/dev/null; do
  tries=$((tries + 1))
  [ $tries -gt 200 ] && { echo "no root drive" > /dev/ttyS1; echo o > /proc/sysrq-trigger; }
  usleep 50000
done
name=$(grep -l tutti-root /sys/class/nvme/*/serial | cut -d / -f 5)
while [ ! -b /dev/${name}n1 ]; do usleep 20000; done
mount -t ext4 -o ro /dev/${name}n1 /root
mount --bind /proc /root/proc
mount --bind /sys /root/sys
mount --bind /dev /root/dev
mount -t tmpfs none /root/tmp
stty -F /dev/ttyS1 raw 2>/dev/null
chroot /root /bin/sh /lab/run.sh > /dev/ttyS1 2>&1
echo "exit status $?" > /dev/ttyS1
echo o > /proc/sysrq-trigger
sleep 60
