#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the CPU operators with AddressSanitizer and UndefinedBehaviorSanitizer into a scratch folder, and runs the
# tests against that build. Needs g++, and a Python with torch, scikit-build-core, ninja and the tests' packages.
#   PYTHON=python3.11 tests/sanitize.sh [pytest arguments]
set -eu
package=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m pip wheel -q --no-deps --no-build-isolation -w "$scratch" "$package" \
    -Cbuild-dir="$scratch/build" -Ccmake.define.TUTTI_SANITIZE=address -Ccmake.define.TUTTI_CUDA=OFF \
    -Ccmake.build-type=RelWithDebInfo
"$python" -m zipfile -e "$scratch"/*.whl "$scratch/site"
# Python itself leaks by design, and its interceptors must come before everything else.
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)" \
    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    PYTHONPATH="$scratch/site${PYTHONPATH:+:$PYTHONPATH}" \
    "$python" -m pytest -q -p no:cacheprovider "$package/tests" \
    -k "not gets_no_threads" "$@"  # that test limits address space, of which ASan needs terabytes
