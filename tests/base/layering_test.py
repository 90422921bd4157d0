#!/usr/bin/python3
"""Holds every room of the tree to the table of who may include whom.

Bazel with GCC does not check that a target includes only what it depends on, and nothing but this stops an include
that runs upward. It reads the sources of the work tree itself, so Bazel runs it every time (tag "external").
To let a room include another, change ROOMS here and the table in CONTRIBUTING.md in the same commit.
"""

import os
import re
import sys
import unittest

# Room: what it may include besides itself. The longest matching prefix names the room of a path. An entry ending in
# .h is that one file; "daemon/*" is every room below daemon/.
ROOMS = {
    "proto": [],
    "daemon/base": ["proto"],
    "daemon/wire": ["daemon/base"],
    "daemon/memory": ["daemon/base", "proto"],
    "daemon/device": ["daemon/base", "proto"],
    "daemon/device/verbs": ["daemon/base", "daemon/device", "proto"],
    "daemon/device/soft": ["daemon/base", "daemon/device", "daemon/wire", "proto"],
    "daemon/engine": ["daemon/base", "daemon/device", "daemon/memory", "proto"],
    "daemon/cm": ["daemon/base", "daemon/device", "daemon/engine/engine_proxy.h", "proto"],
    "daemon/session": ["daemon/base", "daemon/cm", "daemon/device", "daemon/engine/engine_proxy.h",
                       "daemon/memory", "proto"],
    "daemon/control": ["daemon/base", "daemon/cm", "daemon/device", "daemon/engine/engine_proxy.h",
                       "daemon/memory", "daemon/session", "proto"],
    "daemon": ["daemon/*", "proto"],  # main.cc: wiring
    "client": [],
    "client/include": ["client/sdk", "proto"],
    "client/sdk": ["client/include", "proto"],
    "client/dropin": ["client/include", "client/sdk"],
    "client/rdmactl": ["client/include", "client/sdk", "proto"],
    "client/examples": ["client/include"],
}

# System headers that only some rooms may include, by the beginning of the name.
RESTRICTED = {
    "infiniband/": ["client/dropin", "daemon/device/verbs"],
    "rdma/": ["client/dropin", "daemon/device/verbs"],
    # The event loop and gRPC stop at control/: what is below builds and tests without a loop.
    "boost/asio": ["client/examples", "client/include", "client/rdmactl", "client/sdk", "daemon", "daemon/control"],
    "grpc": ["client/include", "client/rdmactl", "client/sdk", "daemon", "daemon/control"],
}

# Headers by another name than their path: public headers of the SDK are <rdmad/...> to applications.
ALIASES = {"rdmad/": "client/include/rdmad/"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
SOURCE = re.compile(r"\.(c|cc|h|inc)$")


def room_of(path):
    """The room of a file, by the longest prefix; None outside of all rooms."""
    folder = os.path.dirname(path)
    while folder:
        if folder in ROOMS:
            return folder
        folder = os.path.dirname(folder)
    return None


def may_include(room, header):
    """Whether a file of `room` may include the file `header` of the tree."""
    target = room_of(header)
    if target is None:
        return False
    if target == room:
        return True
    for allowed in ROOMS[room]:
        if allowed in (target, header):
            return True
        if allowed == "daemon/*" and target.startswith("daemon/"):
            return True
    return False


def violations(path, text):
    """What is wrong with the includes of the file `path`: one line of text each."""
    room = room_of(path)
    found = []
    for match in INCLUDE.finditer(text):
        quote, header = match.groups()
        line = text.count("\n", 0, match.start(2)) + 1
        where = f"{path}:{line}: {room} must not include {header}"
        for alias, real in ALIASES.items():
            if header.startswith(alias):
                header = real + header[len(alias):]
        top = header.split("/")[0]
        if header.startswith(".") or (quote == '"' and "/" not in header):
            found.append(f"{path}:{line}: include {header} by its path from the root of the repository")
        elif top in ("client", "daemon", "proto", "tests"):
            if not may_include(room, header):
                found.append(where)
            elif header.endswith(".grpc.pb.h") and room not in RESTRICTED["grpc"]:
                found.append(where)
        else:
            for prefix, rooms in RESTRICTED.items():
                if header.startswith(prefix) and room not in rooms:
                    found.append(where)
    return found


def sources(root):
    """Every C and C++ file of the rooms, by its path from the root."""
    for top in ("client", "daemon", "proto"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if SOURCE.search(name):
                    yield os.path.relpath(os.path.join(folder, name), root)


class Layering(unittest.TestCase):

    def test_every_include_of_the_tree_runs_downward(self):
        # Bazel runs a link to this file; the file itself is in the work tree.
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
        self.assertTrue(os.path.exists(os.path.join(root, "WORKSPACE")), root)
        paths = list(sources(root))
        self.assertIn("daemon/base/check.h", paths)
        found = []
        for path in paths:
            if room_of(path) is None:
                found.append(f"{path}: in no room; add its folder to ROOMS in tests/base/layering_test.py")
                continue
            with open(os.path.join(root, path), encoding="utf-8") as source:
                found += violations(path, source.read())
        self.assertEqual(found, [], "\n" + "\n".join(found))


class Rules(unittest.TestCase):
    """The checker itself tells right from wrong."""

    ALLOWED = [
        ("daemon/base/a.cc", '#include "daemon/base/b.h"'),
        ("daemon/wire/a.cc", '#include "daemon/base/b.h"'),
        ("daemon/device/soft/a.cc", '#include "daemon/wire/b.h"'),
        ("daemon/device/soft/a.cc", '#include "daemon/device/b.h"'),
        ("daemon/device/verbs/a.cc", "#include <infiniband/verbs.h>"),
        ("daemon/session/a.cc", '#include "daemon/engine/engine_proxy.h"'),
        ("daemon/session/deeper/a.cc", '#include "daemon/session/b.h"'),
        ("daemon/control/a.cc", "#include <boost/asio.hpp>"),
        ("daemon/main.cc", '#include "daemon/device/verbs/b.h"'),
        ("client/sdk/a.cc", '#include "proto/rdmad/v1/session.grpc.pb.h"'),
        ("client/examples/hello/a.cc", "#include <rdmad/client.h>"),
        ("daemon/base/a.cc", "#include <grp.h>"),
    ]
    FORBIDDEN = [
        ("proto/shm/a.h", '#include "daemon/base/b.h"'),
        ("daemon/base/a.h", '#include "daemon/wire/b.h"'),
        ("daemon/wire/a.cc", '#include "proto/shm/b.h"'),
        ("daemon/device/a.h", '#include "daemon/device/soft/b.h"'),
        ("daemon/device/soft/a.h", "#include <rdma/rdma_cma.h>"),
        ("daemon/engine/a.h", '#include "daemon/session/b.h"'),
        ("daemon/session/a.cc", '#include "daemon/engine/engine.h"'),
        ("daemon/session/a.cc", '#  include "proto/rdmad/v1/cm.grpc.pb.h"'),
        ("daemon/session/a.cc", "#include <boost/asio/io_context.hpp>"),
        ("daemon/session/a.cc", "#include <grpcpp/grpcpp.h>"),
        ("daemon/control/a.cc", '#include "daemon/device/soft/b.h"'),
        ("daemon/main.cc", '#include "client/sdk/b.h"'),
        ("client/sdk/a.cc", '#include "daemon/base/check.h"'),
        ("client/dropin/a.cc", '#include "proto/rdmad/v1/cm.pb.h"'),
        ("client/examples/hello.cc", '#include "client/sdk/b.h"'),
        ("daemon/base/a.cc", '#include "tests/support/b.h"'),
        ("daemon/base/a.cc", '#include "b.h"'),
        ("daemon/base/a.cc", '#include "../wire/b.h"'),
    ]

    def test_downward_includes_pass(self):
        for path, text in self.ALLOWED:
            with self.subTest(path=path, text=text):
                self.assertEqual(violations(path, text), [])

    def test_other_includes_are_named_with_their_line(self):
        for path, text in self.FORBIDDEN:
            with self.subTest(path=path, text=text):
                found = violations(path, "// a comment\n\n" + text + "\n")
                self.assertEqual(len(found), 1)
                self.assertIn(f"{path}:3: ", found[0])


if __name__ == "__main__":
    sys.exit(unittest.main())
