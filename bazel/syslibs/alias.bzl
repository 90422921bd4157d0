"""Names a target of @syslibs in this package."""

def system_library(name, visibility = None):
    native.alias(
        name = name,
        actual = "@syslibs//:" + name,
        visibility = visibility or ["//visibility:public"],
    )
