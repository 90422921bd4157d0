#!/usr/bin/env bash
# Runs one fuzz target for a fixed time, from its corpus on: run.sh BINARY TARGET [SECONDS].
#
# By hand, for longer, with what it finds kept:
#   RDMAD_FUZZ_TARGET=cm bazel-bin/tests/fuzz/fuzz -max_total_time=3600 tests/fuzz/corpus/cm
set -euo pipefail

binary=$1
target=$2
seconds=${3:-20}
# shellcheck source=../../bazel/skip.sh
source bazel/skip.sh

[ -x "$binary" ] && [ "${binary%.missing}" = "$binary" ] ||
  rdmad_skip "needs clang with libFuzzer: packages clang-14 and libclang-rt-14-dev"

out=${TEST_UNDECLARED_OUTPUTS_DIR:-$(mktemp -d)}
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
export RDMAD_FUZZ_TARGET=$target
# What is new goes to the first folder, which is ours. The kernel's limit on map counts and the like is not our matter:
# memory is bounded here.
if ! "$binary" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
  -artifact_prefix="$out/$target-" "$found" "tests/fuzz/corpus/$target" >"$out/$target.log" 2>&1; then
  tail -60 "$out/$target.log"
  for input in "$out/$target"-*; do
    [ -e "$input" ] || continue
    echo "again: put this into a file, base64 decoded, and run RDMAD_FUZZ_TARGET=$target $binary FILE"
    base64 -w0 "$input"
    echo
  done
  exit 1
fi
grep -E '^stat::number_of_executed_units|^stat::average_exec|INITED|DONE' "$out/$target.log"
