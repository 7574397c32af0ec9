#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Unpacks a Debian kernel for virtual machines (nvme and ext4 built in, vfio as modules) into a folder; nothing is
# installed, the system's lists of packages stay as they are, no root is needed.
#   fetch_kernel.sh FOLDER           the system's own: for TUTTI_GUEST_KERNEL
#   fetch_kernel.sh FOLDER SUITE     a suite's, such as trixie-backports (P2PDMA): for TUTTI_GUEST_KERNEL_P2P
set -eu
folder=$1
suite=${2-}
mkdir -p "$folder/debs/lists/partial" "$folder/debs/cache/archives/partial"
cd "$folder/debs"
apt() { command=$1; shift; "$command" "$@"; }
if [ -n "$suite" ]; then
  site=$(apt-get indextargets --format '$(REPO_URI)' | grep '/debian/$' | sort -u | head -n 1)
  [ -n "$site" ] || { echo "this system has no Debian archive among its sources" >&2; exit 1; }
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $suite main" > sources.list
  apt() {
    command=$1
    shift
    "$command" -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null \
      -o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD/cache" "$@"
  }
  apt apt-get update -qq
fi
depends() { apt apt-cache depends "$1" | sed -n "s/.*Depends: \(linux-\(image\|binary\|modules\)-[0-9].*\)/\1/p"; }
package=$(depends linux-image-cloud-amd64 | head -n 1)
[ -n "$package" ] || { echo "no linux-image-cloud-amd64 among the packages (Debian has it)" >&2; exit 1; }
# Newer ones are an empty package that names one with the kernel and one with its modules.
parts=$(depends "$package")
apt apt-get download -q ${parts:-$package}
for archive in *.deb; do
  dpkg-deb --fsys-tarfile "$archive" | tar -x -C "$folder" --wildcards --no-anchored \
    'vmlinuz*' 'boot/config*' 'kernel/drivers/vfio/*' 'irqbypass.ko*' 2>/dev/null || true
done
rm -r "$folder/debs"
[ -n "$(find "$folder" -name 'vmlinuz*')" ] || { echo "no kernel in ${parts:-$package}" >&2; exit 1; }
