"""Whether this machine has clang with libFuzzer; only tests/fuzz asks. GCC builds everything else."""

def _clang_impl(repository_ctx):
    clang = repository_ctx.which("clang++-14") or repository_ctx.which("clang++")
    path = ""
    if clang != None:
        # The runtime library is a package of its own.
        library = repository_ctx.execute([clang, "-print-file-name=libclang_rt.fuzzer-x86_64.a"])
        resources = repository_ctx.execute([clang, "-print-resource-dir"])
        runtime = resources.stdout.strip() + "/lib/linux/libclang_rt.fuzzer-x86_64.a"
        if repository_ctx.path(library.stdout.strip() if library.stdout.startswith("/") else runtime).exists:
            path = str(clang)
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("defs.bzl", "CLANG = %r\n" % path)

clang_repository = repository_rule(
    implementation = _clang_impl,
    doc = "@clang//:defs.bzl has the path of clang++, or nothing. Looked at anew whenever a Bazel server starts.",
    configure = True,
    local = True,
)
