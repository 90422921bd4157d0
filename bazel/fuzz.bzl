"""Binaries for libFuzzer: compiled by clang, whole, from the sources that stand behind ordinary cc_library targets.

The rest of the build is GCC's, which has no libFuzzer. An aspect collects the sources of all that a fuzz target
depends on; each is compiled once more with coverage and sanitizers.
"""

load("@clang//:defs.bzl", "CLANG")

_FLAGS = [
    "-std=c++20",
    "-march=x86-64-v2",
    "-O1",
    "-g1",
    "-fno-omit-frame-pointer",
    "-fno-sanitize-recover=all",
    "-DRD_SANITIZER=1",
    "-w",  # GCC's build is the one that warns
]

_Sources = provider(fields = ["files"])

def _sources_impl(target, ctx):
    own = []
    for source in getattr(ctx.rule.attr, "srcs", []):
        own += [file for file in source.files.to_list() if file.extension == "cc"]
    below = [dep[_Sources].files for dep in getattr(ctx.rule.attr, "deps", []) if _Sources in dep]
    return [_Sources(files = depset(own, transitive = below))]

_sources = aspect(implementation = _sources_impl, attr_aspects = ["deps"])

def _fuzz_binary_impl(ctx):
    info = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    compilation = info.compilation_context
    flags = _FLAGS + ["-I."]
    flags += ["-D" + define for define in compilation.defines.to_list()]
    for directory in compilation.includes.to_list() + compilation.system_includes.to_list() + \
                     compilation.quote_includes.to_list():
        flags += ["-isystem", directory]
    sources = depset(ctx.files.srcs, transitive = [dep[_Sources].files for dep in ctx.attr.deps])
    objects = []
    for source in sources.to_list():
        object = ctx.actions.declare_file("_fuzz/%s/%s.o" % (ctx.label.name, source.short_path.replace("../", "")))
        ctx.actions.run(
            executable = CLANG,
            arguments = flags + ["-fsanitize=fuzzer-no-link,address,undefined", "-c", source.path, "-o", object.path],
            inputs = depset([source], transitive = [compilation.headers]),
            outputs = [object],
            mnemonic = "FuzzCompile",
            progress_message = "Compiling %s for fuzzing" % source.short_path,
        )
        objects.append(object)
    libraries = []
    for linked in info.linking_context.linker_inputs.to_list():
        libraries += linked.user_link_flags
    binary = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.run(
        executable = CLANG,
        arguments = ["-fsanitize=fuzzer,address,undefined", "-o", binary.path] +
                    [object.path for object in objects] + libraries,
        inputs = objects,
        outputs = [binary],
        mnemonic = "FuzzLink",
    )
    return [DefaultInfo(files = depset([binary]), executable = binary)]

_fuzz_binary = rule(
    implementation = _fuzz_binary_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"]),
        "deps": attr.label_list(providers = [CcInfo], aspects = [_sources]),
    },
    executable = True,
)

def fuzz_binary(name, **kwargs):
    """A libFuzzer binary of `srcs` and everything behind `deps`; without clang a file that is not executable."""
    if CLANG:
        _fuzz_binary(name = name, testonly = True, **kwargs)
    else:
        native.genrule(
            name = name,
            testonly = True,
            outs = [name + ".missing"],
            cmd = "touch $@",
        )
