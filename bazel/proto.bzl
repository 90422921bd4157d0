"""C++ code from .proto files with the system's protoc and gRPC plugin."""

load("@rules_cc//cc:defs.bzl", "cc_library")

_PROTOC = "/usr/bin/protoc"
_GRPC_PLUGIN = "/usr/bin/grpc_cpp_plugin"

def cc_proto_genrule_library(name, srcs, deps = [], grpc = False, visibility = None, testonly = None):
    """Makes a cc_library of .proto files of this package.

    Headers are included by their path from the repository root: "proto/rdmad/v1/session.pb.h". A .proto imports
    another by that same path. The generated code is not held to our warnings (.bazelrc names our folders only).

    Args:
      name: the cc_library; the .proto files and those of deps are in the filegroup NAME_srcs.
      srcs: .proto files of this package.
      deps: other cc_proto_genrule_library targets whose files the srcs import.
      grpc: also generate the services (NAME.grpc.pb.h).
      visibility: of the library.
      testonly: as everywhere.
    """
    outs_h = []
    outs_cc = []
    for src in srcs:
        if not src.endswith(".proto"):
            fail("not a .proto file: " + src, "srcs")
        stem = src[:-len(".proto")]
        outs_h.append(stem + ".pb.h")
        outs_cc.append(stem + ".pb.cc")
        if grpc:
            outs_h.append(stem + ".grpc.pb.h")
            outs_cc.append(stem + ".grpc.pb.cc")

    native.filegroup(
        name = name + "_srcs",
        srcs = srcs + [dep + "_srcs" for dep in _absolute(deps)],
        testonly = testonly,
        visibility = visibility,
    )
    command = [_PROTOC, "--proto_path=.", "--cpp_out=$(GENDIR)"]
    if grpc:
        command += ["--grpc_out=$(GENDIR)", "--plugin=protoc-gen-grpc=" + _GRPC_PLUGIN]
    command += ["$(location %s)" % src for src in srcs]
    native.genrule(
        name = name + "_gen",
        srcs = srcs + [":%s_srcs" % name],
        outs = outs_h + outs_cc,
        cmd = " ".join(command),
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = outs_cc,
        hdrs = outs_h,
        testonly = testonly,
        visibility = visibility,
        deps = deps + ["//bazel/syslibs:protobuf"] + (["//bazel/syslibs:grpc"] if grpc else []),
    )

def _absolute(labels):
    """Writes out the target name of labels such as //a/b, so that a suffix can follow."""
    return [
        label if ":" in label else label + ":" + label.split("/")[-1]
        for label in labels
    ]
