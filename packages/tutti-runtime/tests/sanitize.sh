#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the C++ tests without Python and runs them: plain, under ASan and UBSan, and under TSan.
#   tests/sanitize.sh [build folder [plain|address|thread ...]]
set -euo pipefail
package=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-"$package/build/sanitize"}
kinds=("${@:2}")
((${#kinds[@]})) || kinds=(plain address thread)
for kind in "${kinds[@]}"; do
  folder="$build/$kind" sanitizer=${kind/#plain/}
  cmake -S "$package" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTUTTI_RUNTIME_PYTHON=OFF \
    -DTUTTI_RUNTIME_TESTS=ON -DTUTTI_WERROR=ON -DTUTTI_SANITIZE="$sanitizer" >/dev/null
  cmake --build "$folder" -j 2
  echo "== ${sanitizer:-no sanitizer}"
  ctest --test-dir "$folder" --output-on-failure
done
