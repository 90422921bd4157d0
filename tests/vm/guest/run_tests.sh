#!/bin/bash
# In the guest, for vm_test.sh: run_tests.sh SETUP {--script FILE | --test PROGRAM...} [-- ARG...]. SETUP is a function of
# guest.sh, or empty. Ends with the status of the script, or with that of the first program that failed. Results of the
# programs go to $VM_RW/NUMBER.xml, in order. With rxe_pair, a program must leave nothing of its own in the kernel.
# shellcheck source=../guest.sh
source "$VM_DIR/guest.sh"

setup=$1
shift
script=
tests=()
while [ $# -gt 0 ]; do
  case $1 in
    --script) script=$2 ;;
    --test) tests+=("$2") ;;
    --) shift && break ;;
  esac
  shift 2
done

export TEST_TMPDIR=/tmp/vm-test
mkdir -p "$TEST_TMPDIR"
# The processor is emulated (tests/support/slow.h).
export RDMAD_TEST_SLOWNESS=10
if [ -n "$setup" ]; then
  "$setup" || { echo "guest: $setup failed" && exit 1; }
  export A4 B4 A6 B6
fi

[ -z "$script" ] || exec bash "$script" "$@"

# QPs, CQs, regions and so on of every device, as many as there are. A device that came back has another number.
resources() { rdma resource show | sed 's/^[0-9]*: //' | sort; }
as_before() { [ "$(resources)" = "$before" ]; }
before=
[ "$setup" != rxe_pair ] || before=$(resources)

code=0
for i in "${!tests[@]}"; do
  XML_OUTPUT_FILE=$(printf '%s/%03d.xml' "$VM_RW" "$i") "${tests[$i]}" "$@"
  ended=$?
  if [ -n "$before" ] && ! wait_until 10 as_before; then
    printf '%s left in the kernel:\n%s\nbefore:\n%s\n' "${tests[$i]}" "$(resources)" "$before"
    [ $ended != 0 ] || ended=1
  fi
  if [ $ended != 0 ]; then
    echo "${tests[$i]} ended with status $ended"
    [ $code != 0 ] || code=$ended
  fi
done
exit "$code"
