"""Tests that run on a kernel with RDMA, in a virtual machine (tests/vm/vm)."""

def vm_test(
        name,
        tests = [],
        test_args = [],
        script = None,
        setup = None,
        data = [],
        tools = [],
        systemd = False,
        rdma = True,
        mem_mib = 2048,
        guest_timeout_s = 300,
        tags = [],
        **kwargs):
    """Boots a guest, sets its network and RDMA devices up, and runs GoogleTest programs or a script there.

    What runs in the guest runs as root, in the runfiles as usual. Cases of GoogleTest programs count one by one. Where the machine
    cannot run guests, the test is skipped and says why. The guest's console is among the test's undeclared outputs.

    Not under sanitizers (emulated, they take for ever), and alone on a machine of two processors (an emulated processor is as busy
    as a real one).

    Args:
      name: of the test.
      tests: labels of cc_test (or testonly cc_binary) targets, run one after the other in the same guest.
      test_args: arguments for each of them, such as --gtest_filter=*.
      script: instead of `tests`, a bash script; it gets `test_args`.
      setup: a function of guest.sh to call first: "rxe_pair", "two_hosts", "two_hosts_1500", "rxe_dummy", "rxe_lo". Its variables A4, B4, A6, B6 are
        in the environment of what runs then. A network of two_hosts is also the namespace "peer".
      data: more files.
      tools: programs of bazel/packages/tools.txt that are used in the guest, where nothing can be fetched: rdmad_tool and FindTool
        find them there.
      systemd: systemd is PID 1, and the script a service of it.
      rdma: False for a host without RDMA. (rxe, once loaded, keeps UDP port 4791 of the first network namespace to itself.)
      mem_mib: memory of the guest.
      guest_timeout_s: bounds the guest's life, with its boot (5 s, with systemd 15 s; three times that on a busy machine).
      tags: more tags.
      **kwargs: for the sh_test.
    """
    if bool(tests) == bool(script):
        fail("vm_test %s: either `tests` or `script`" % name)
    options = ["--mem", str(mem_mib), "--timeout", str(guest_timeout_s)]
    if setup:
        options += ["--setup", setup]
    if systemd:
        options += ["--systemd"]
    for tool in tools:
        options += ["--tool", tool]
    if not rdma:
        options += ["--no-rdma"]
    if script:
        options += ["--script", "$(rootpath %s)" % script]
    for test in tests:
        options += ["--test", "$(rootpath %s)" % test]
    native.sh_test(
        name = name,
        srcs = ["//tests/vm:vm_test.sh"],
        args = options + ["--"] + test_args,
        data = data + tests + ([script] if script else []) + ["//bazel:skip", "//tests/vm:machine"],
        tags = tags + ["cpu:2", "no_sanitizer", "vm"],
        # The guest's own limit ends first; the rest is for fetching QEMU and the kernel the first time.
        timeout = "long",
        **kwargs
    )
