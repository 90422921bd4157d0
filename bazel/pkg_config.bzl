"""Makes a cc_library of each system library that the project uses.

`system_libraries` asks pkg-config for the flags of every entry of LIBRARIES and writes one repository with a cc_library
per entry. Defines and link options travel to dependents; include directories other than the compiler's own are linked
into the repository, because Bazel accepts no absolute include path. What is missing is reported in one message that
names the Debian packages.
"""

# One entry per target of the repository:
#   package   the Debian package that brings headers and .pc files
#   modules   pkg-config modules, all of them in one target
#   header    a header that must exist (for libraries without a .pc file, and where the .pc file alone proves little)
#   defines   added to what pkg-config says
#   linkopts  added to what pkg-config says
#   drop      defines of pkg-config to leave out
#   before    {header: text} to compile before a header of the library, where one is not complete by itself
LIBRARIES = {
    "absl": struct(
        package = "libabsl-dev",
        modules = [
            "absl_any_invocable",
            "absl_base",
            "absl_bind_front",
            "absl_cleanup",
            "absl_core_headers",
            "absl_fixed_array",
            "absl_flags",
            "absl_flags_parse",
            "absl_flags_usage",
            "absl_flat_hash_map",
            "absl_flat_hash_set",
            "absl_function_ref",
            "absl_hash",
            "absl_inlined_vector",
            "absl_node_hash_map",
            "absl_random_random",
            "absl_span",
            "absl_stacktrace",
            "absl_status",
            "absl_statusor",
            "absl_str_format",
            "absl_strings",
            "absl_symbolize",
            "absl_synchronization",
            "absl_time",
        ],
        header = "absl/status/statusor.h",
        drop = ["NOMINMAX"],
    ),
    # Asio is used from headers only, so nothing of Boost is linked.
    "asio": struct(
        package = "libboost-dev",
        header = "boost/asio.hpp",
        defines = [
            "BOOST_ASIO_NO_DEPRECATED",
            "BOOST_ASIO_HEADER_ONLY",
            "BOOST_ERROR_CODE_HEADER_ONLY",
        ],
        linkopts = ["-lpthread"],
        # Boost 1.74 uses std::exchange there and counts on others to have included its header.
        before = {"boost/asio/awaitable.hpp": "#include <utility>"},
    ),
    "cli11": struct(
        package = "libcli11-dev",
        modules = ["CLI11"],
        header = "CLI/CLI.hpp",
    ),
    # SHA-256 and random bytes; TLS is not used.
    "crypto": struct(
        package = "libssl-dev",
        modules = ["libcrypto"],
        header = "openssl/evp.h",
    ),
    "gmock": struct(
        package = "libgmock-dev",
        modules = ["gmock"],
        header = "gmock/gmock.h",
    ),
    "grpc": struct(
        package = "libgrpc++-dev",
        modules = ["grpc++"],
        header = "grpcpp/grpcpp.h",
        drop = ["NOMINMAX"],
    ),
    "gtest": struct(
        package = "libgtest-dev",
        modules = ["gtest"],
        header = "gtest/gtest.h",
    ),
    # gtest with its main().
    "gtest_main": struct(
        package = "libgtest-dev",
        modules = ["gtest_main"],
        header = "gtest/gtest.h",
    ),
    "isal": struct(
        package = "libisal-dev",
        modules = ["libisal"],
        header = "isa-l.h",
    ),
    "libnl": struct(
        package = "libnl-route-3-dev",
        modules = ["libnl-3.0", "libnl-route-3.0"],
        header = "libnl3/netlink/route/link.h",
    ),
    # HTTP/2 for the daemon's side of gRPC.
    "nghttp2": struct(
        package = "libnghttp2-dev",
        modules = ["libnghttp2"],
        header = "nghttp2/nghttp2.h",
    ),
    "prometheus_cpp": struct(
        package = "prometheus-cpp-dev",
        modules = ["prometheus-cpp-core", "prometheus-cpp-pull"],
        header = "prometheus/exposer.h",
    ),
    "protobuf": struct(
        package = "libprotobuf-dev",
        modules = ["protobuf"],
        header = "google/protobuf/message.h",
    ),
    "rdma_core": struct(
        package = "libibverbs-dev librdmacm-dev",
        modules = ["libibverbs", "librdmacm"],
        header = "rdma/rdma_cma.h",
    ),
    # The verbs headers without the library: for the drop-in, which must not link what it replaces.
    "rdma_core_headers": struct(
        package = "libibverbs-dev librdmacm-dev",
        header = "rdma/rdma_cma.h",
    ),
    "spdlog": struct(
        package = "libspdlog-dev",
        modules = ["spdlog"],
        header = "spdlog/spdlog.h",
    ),
    "systemd": struct(
        package = "libsystemd-dev",
        modules = ["libsystemd"],
        header = "systemd/sd-daemon.h",
    ),
    # Debian builds it as a shared library (TOML_HEADER_ONLY=0), without exceptions turned off.
    "tomlplusplus": struct(
        package = "libtomlplusplus-dev",
        modules = ["tomlplusplus"],
        header = "toml++/toml.h",
    ),
}

# Programs that the build runs, with the Debian package of each.
PROGRAMS = {
    "/usr/bin/protoc": "protobuf-compiler",
    "/usr/bin/grpc_cpp_plugin": "protobuf-compiler-grpc",
}

_INCLUDE_ROOTS = ["/usr/include"]

_LIBRARY = """
cc_library(
    name = "{name}",
    hdrs = {hdrs},
    defines = {defines},
    includes = {includes},
    linkopts = {linkopts},
)
"""

def _attr(library, name):
    return getattr(library, name, [])

def _unique_last(items):
    """Removes repeated items, keeping the last of each: a library stays behind all that need it."""
    seen = {}
    kept = []
    for item in reversed(items):
        if item not in seen:
            seen[item] = True
            kept.append(item)
    return reversed(kept)

def _library(repository_ctx, pkg_config, name, library):
    """Returns (text of the target, list of problems)."""
    header = getattr(library, "header", None)
    if header and not repository_ctx.path("/usr/include/" + header).exists:
        return None, ["%s: no /usr/include/%s" % (name, header)]

    flags = []
    modules = _attr(library, "modules")
    if modules:
        # The environment of the caller must not change what is found.
        result = repository_ctx.execute(
            [pkg_config, "--cflags", "--libs"] + modules,
            environment = {"PKG_CONFIG_PATH": "", "LC_ALL": "C"},
        )
        if result.return_code != 0:
            return None, ["%s: pkg-config: %s" % (name, result.stderr.strip().split("\n")[0])]
        flags = [flag for flag in result.stdout.replace("\n", " ").split(" ") if flag]

    defines = list(_attr(library, "defines"))
    linkopts = []
    includes = []
    for flag in flags:
        if flag.startswith("-D"):
            define = flag[2:]
            if define not in _attr(library, "drop"):
                defines.append(define)
        elif flag.startswith("-I"):
            directory = flag[2:]
            if directory not in _INCLUDE_ROOTS and directory not in includes:
                includes.append(directory)
        else:
            linkopts.append(flag)
    linkopts += _attr(library, "linkopts")
    if linkopts:
        # What a program does not call it need not load: pkg-config names whole families, and a header's mere use brings them.
        linkopts = ["-Wl,--as-needed"] + linkopts

    local_includes = []
    for directory in includes:
        local = "include" + directory
        if not repository_ctx.path(local).exists:
            repository_ctx.symlink(directory, local)
        local_includes.append(local)
    before = getattr(library, "before", {})
    for header, text in before.items():
        repository_ctx.file("before/%s/%s" % (name, header), "%s\n#include_next <%s>\n" % (text, header))
    if before:
        local_includes.append("before/" + name)
    hdrs = "[]"
    if local_includes:
        hdrs = "glob(%r)" % [local + "/**/*.h*" for local in local_includes]
    return _LIBRARY.format(
        name = name,
        hdrs = hdrs,
        defines = repr(defines),
        includes = repr(local_includes),
        linkopts = repr(_unique_last(linkopts)),
    ), []

def _system_libraries_impl(repository_ctx):
    pkg_config = repository_ctx.path("/usr/bin/pkg-config")
    if not pkg_config.exists:
        fail("\n\n/usr/bin/pkg-config is missing; install the Debian package pkg-config.\n")

    build = ["package(default_visibility = [\"//visibility:public\"])\n"]
    problems = []
    packages = {}
    for name, library in LIBRARIES.items():
        text, wrong = _library(repository_ctx, pkg_config, name, library)
        if wrong:
            problems += wrong
            for package in library.package.split(" "):
                packages[package] = True
        else:
            build.append(text)
    for program, package in PROGRAMS.items():
        if not repository_ctx.path(program).exists:
            problems.append("no " + program)
            packages[package] = True

    if problems:
        fail("\n\nThe build needs system libraries that are not installed:\n  %s\nInstall them with:\n  apt-get install --no-install-recommends %s\n" %
             ("\n  ".join(problems), " ".join(packages.keys())))
    repository_ctx.file("BUILD.bazel", "".join(build))

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    doc = "The repository of all system libraries. Looked at anew whenever a Bazel server starts.",
    configure = True,
    local = True,
)
