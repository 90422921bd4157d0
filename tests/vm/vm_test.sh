#!/usr/bin/env bash
# What a vm_test (vm_test.bzl) runs: a guest, and in it guest/run_tests.sh.
#
#   vm_test.sh [--setup FUNCTION] [--tool PROGRAM...] [--systemd] [--no-rdma] [--mem MIB] [--timeout S]
#              {--script FILE | --test PROGRAM...} [-- ARG...]
set -uo pipefail

# shellcheck source=../../bazel/skip.sh
source bazel/skip.sh
# shellcheck source=../../bazel/setup.sh
source bazel/setup.sh

setup=
tools=()
check=()
run=()
job=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --setup) setup=$2 && shift ;;
    --tool) tools+=("$2") && shift ;;
    --systemd) check+=("$1") && run+=("$1") ;;
    --no-rdma) run+=("$1") ;;
    --mem) check+=("$1" "$2") && run+=("$1" "$2") && shift ;;
    --timeout) run+=("$1" "$2") && shift ;;
    --script | --test) job+=("$1" "$2") && shift ;;
    *) echo "vm_test.sh: unknown option $1" >&2 && exit 2 ;;
  esac
  shift
done

reason=$(tests/vm/vm check "${check[@]}" 2>/dev/null) || rdmad_skip "${reason:-tests/vm/vm does not run}"

for tool in "${tools[@]}"; do
  rdmad_tool "$tool" >/dev/null || rdmad_skip "needs $tool, which cannot be fetched"
done

results=$(mktemp -d "$TEST_TMPDIR/results.XXXXXX")
tests/vm/vm run "${run[@]}" --rw "$results" --log "${TEST_UNDECLARED_OUTPUTS_DIR:-$results}/console.log" --verbose \
  --env HOME --env XDG_CACHE_HOME --env LC_ALL=C.UTF-8 --env GTEST_COLOR=no \
  --env TEST_SRCDIR --env TEST_WORKSPACE --env RUNFILES_DIR --env TEST_TARGET \
  tests/vm/guest/run_tests.sh "$setup" "${job[@]}" "$@"
code=$?

# The results of several programs become one file.
if [ -n "${XML_OUTPUT_FILE:-}" ] && compgen -G "$results/*.xml" >/dev/null; then
  {
    echo '<?xml version="1.0" encoding="UTF-8"?>'
    echo '<testsuites>'
    sed -e '/<?xml /d' -e '/<testsuites/d' -e '/<\/testsuites>/d' "$results"/*.xml
    echo '</testsuites>'
  } >"$XML_OUTPUT_FILE"
fi
exit "$code"
