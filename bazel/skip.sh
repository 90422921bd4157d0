# shellcheck shell=bash
# For shell tests, to be sourced: skips the test where this machine cannot run it.
#
#   rdmad_skip "needs network namespaces: unshare -n is not permitted"
#
# Bazel knows no skipped test: it passes for Bazel, and tests/run counts and prints it by the XML file written here.
rdmad_skip() {
  local reason=$1 escaped
  escaped=$(printf '%s' "$reason" | sed -e 's/&/\&amp;/g' -e 's/</\&lt;/g' -e 's/>/\&gt;/g' -e 's/"/\&quot;/g')
  printf 'skipped: %s\n' "$reason"
  if [ -n "${XML_OUTPUT_FILE:-}" ]; then
    cat >"$XML_OUTPUT_FILE" <<XML
<testsuites tests="1" failures="0" errors="0">
  <testsuite name="${TEST_TARGET:-test}" tests="1" failures="0" errors="0" skipped="1">
    <testcase name="all" result="skipped"><skipped message="$escaped"/></testcase>
  </testsuite>
</testsuites>
XML
  fi
  exit 0
}
