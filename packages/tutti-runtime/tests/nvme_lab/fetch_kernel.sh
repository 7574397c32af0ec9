#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Unpacks Debian's kernel for virtual machines (nvme and ext4 built in, vfio as modules) into a folder; nothing is
# installed, no root is needed. Tests under a guest run where TUTTI_GUEST_KERNEL names that folder.
#   fetch_kernel.sh FOLDER
set -eu
folder=$1
mkdir -p "$folder"
cd "$folder"
package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
[ -n "$package" ] || { echo "no linux-image-cloud-amd64 among this system's packages (Debian has it)" >&2; exit 1; }
apt-get download -q "$package"
dpkg-deb --fsys-tarfile linux-image-*.deb | tar -x --wildcards './boot/vmlinuz*' './boot/config*' \
  './lib/modules/*/kernel/drivers/vfio/*' './lib/modules/*/kernel/virt/lib/irqbypass.ko*'
rm linux-image-*.deb
