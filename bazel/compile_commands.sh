#!/usr/bin/env bash
# Writes compile_commands.json for editors (clangd): `bash bazel/compile_commands.sh [TARGETS, default //...]`.
# Also builds the generated headers, without which an editor finds none. Options of a configuration may follow
# in BAZEL_FLAGS, e.g. BAZEL_FLAGS=--config=opt.
set -euo pipefail
cd "$(dirname "$0")/.."
pattern=${1:-//...}
actions=$(mktemp)
trap 'rm -f "$actions"' EXIT

# shellcheck disable=SC2086  # several flags are several words
bazel build ${BAZEL_FLAGS:-} --keep_going "$pattern" || echo "compile_commands: the build failed; going on with what there is" >&2
# shellcheck disable=SC2086
bazel aquery ${BAZEL_FLAGS:-} --keep_going --output=jsonproto "mnemonic(\"CppCompile\", $pattern)" >"$actions"
execution_root=$(bazel info execution_root)

/usr/bin/python3 - "$actions" "$execution_root" <<'PYTHON'
import json
import os
import sys

actions_path, execution_root = sys.argv[1:]
with open(actions_path, encoding="utf-8") as actions_file:
    actions = json.load(actions_file).get("actions", [])

root = os.getcwd()
commands = {}
for action in actions:
    arguments = action["arguments"]
    source = arguments[arguments.index("-c") + 1]
    if source.startswith("external/"):
        continue
    # Clang does not know this flag of GCC's.
    arguments = [argument for argument in arguments if argument != "-fno-canonical-system-headers"]
    # Commands run where Bazel runs them, for the paths of generated and external headers; sources are named in the
    # work tree, so that an editor knows the file.
    if not source.startswith("bazel-out/"):
        arguments[arguments.index("-c") + 1] = os.path.join(root, source)
    commands[source] = {
        "directory": execution_root,
        "file": os.path.join(execution_root if source.startswith("bazel-out/") else root, source),
        "arguments": arguments,
    }

# In one step: an editor may be reading.
with open("compile_commands.json.new", "w", encoding="utf-8") as out:
    json.dump([commands[source] for source in sorted(commands)], out, indent=1)
os.replace("compile_commands.json.new", "compile_commands.json")
print(f"compile_commands.json: {len(commands)} files")
PYTHON
