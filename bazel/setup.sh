# shellcheck shell=bash
# Brings a bare Debian 12 to where the project builds and its tests run. To be sourced; defines
#
#   rdmad_setup LIST...     installs what is missing of bazel/packages/LIST.txt; 1 when that cannot be done
#   rdmad_tools             fetches the programs of bazel/packages/tools.txt
#   rdmad_tool PROGRAM      prints the path of one of those, fetching it first if need be
#   rdmad_bazel ARG...      Bazel with its caches in the user's cache folder. RDMAD_BAZEL_BASE=DIR: a server beside the usual one,
#                           with its output below DIR
#
# Packages are installed by root, or through sudo. Without either, everything must be there already; what is not is
# named. No question is asked, and no service is started. Needs nothing but bash, dpkg and coreutils to begin with.

_rdmad_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# Sets HOME where there is none (a CI runner, a Bazel test): caches need a place that the next run finds again.
_rdmad_home() {
  if [ -z "${HOME:-}" ] || [ ! -w "$HOME" ]; then
    HOME=$(getent passwd "$(id -u)" | cut -d: -f6 || true)
    if [ -z "$HOME" ] || [ ! -w "$HOME" ]; then
      HOME=/tmp/rdmad-home-$(id -u)
      mkdir -p "$HOME"
      # Anyone may have put a folder of that name into /tmp.
      [ -O "$HOME" ] && [ ! -L "$HOME" ] || HOME=$(mktemp -d)
    fi
  fi
  export HOME
  # Bazel names its output folder after the user and looks no further than this and the password file. For a user
  # without a name, `id` fails but prints the number.
  export USER=${USER:-$(id -un 2>/dev/null)}
}
_rdmad_home

_rdmad_say() { printf 'setup: %s\n' "$*" >&2; }

# Runs a command as root: directly, or by sudo. Asks for a password only where a person can answer.
_rdmad_as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    sudo "$@"
  else
    return 126
  fi
}

# apt-get without questions; waits for another apt instead of failing.
_rdmad_apt() {
  _rdmad_as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
    apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 -o APT::Sandbox::User=root "$@" </dev/null >&2
}

# The lines of a list without comments.
_rdmad_list() { sed -e 's/[[:space:]]*#.*//' -e '/^[[:space:]]*$/d' "$_rdmad_root/bazel/packages/$1.txt"; }

# Those of the given packages that are not installed.
_rdmad_missing() {
  local package status
  for package in "$@"; do
    status=$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | sort -u) || true
    [[ $status == *installed* && $status != *not-installed* ]] || printf '%s\n' "$package"
  done
}

# Whether apt knows the package; it does not before the first update.
_rdmad_known() { apt-cache show --no-all-versions "$1" >/dev/null 2>&1; }

rdmad_setup() {
  local list missing
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    _rdmad_say "there is no apt-get: the project builds on Debian 12 (or newer with the same packages)"
    return 1
  fi
  # shellcheck disable=SC2046  # one word a package
  missing=$(for list in "$@"; do _rdmad_missing $(_rdmad_list "$list"); done)
  [ -n "$missing" ] || return 0
  missing=$(printf '%s\n' "$missing" | sort -u | tr '\n' ' ')
  if ! _rdmad_as_root true; then
    _rdmad_say "packages are missing, and without root or sudo they cannot be installed. As root:"
    _rdmad_say "  apt-get install --no-install-recommends $missing"
    return 1
  fi
  _rdmad_say "installing $missing"
  # shellcheck disable=SC2086
  if ! { _rdmad_apt update && _rdmad_apt install --no-install-recommends $missing; }; then
    _rdmad_say "apt-get failed; it was to install: $missing"
    return 1
  fi
}

# Where unpacked programs are: one folder a package, complete once it exists.
_rdmad_tools_dir() { printf '%s/rdmad/tools\n' "${XDG_CACHE_HOME:-$HOME/.cache}"; }

# Prints "PACKAGE" of a program of tools.txt.
_rdmad_tool_package() {
  _rdmad_list tools | while IFS=: read -r package programs; do
    for program in $programs; do
      if [ "$program" = "$1" ]; then printf '%s\n' "${package%\?}"; fi
    done
  done
}

# Environment that an unpacked program needs to find its own files: one NAME=VALUE a line. $1 package, $2 its folder.
_rdmad_tool_environment() {
  local lib=$2/usr/lib/x86_64-linux-gnu
  case $1 in
    tshark) printf '%s\n' "WIRESHARK_DATA_DIR=$2/usr/share/wireshark" "WIRESHARK_PLUGIN_DIR=$lib/wireshark/plugins" ;;
    ucx-utils) printf '%s\n' "UCX_MODULE_DIR=$lib/ucx" ;;
    qemu-system-x86) printf '%s\n' "QEMU_MODULE_DIR=$lib/qemu" ;;
    systemd) printf '%s\n' "SYSTEMD_UNIT_PATH=:$2/usr/lib/systemd/system:$2/lib/systemd/system" ;;
  esac
}

# Downloads packages into DIR and unpacks them there.
_rdmad_tool_download() {
  local dir=$1 path
  shift
  (cd "$dir" && apt-get -q -o Acquire::Retries=3 -o APT::Sandbox::User=root download "$@" </dev/null >&2) || return 1
  for path in "$dir"/*.deb; do
    dpkg-deb -x "$path" "$dir" || return 1
    rm -f "$path"
  done
}

# Unpacks the kernel that PACKAGE stands for (linux-image-amd64 only depends on one), and nothing that installing it
# would need. rdmad-bin/vmlinuz leads to it.
_rdmad_kernel_unpack() {
  local package=$1 dir=$2 kernel
  _rdmad_known "$package" || _rdmad_apt update || true
  kernel=$(LC_ALL=C apt-cache depends "$package" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)
  _rdmad_tool_download "$dir" "${kernel:-$package}" || return 1
  mkdir -p "$dir/rdmad-bin"
  kernel=$(cd "$dir" && echo boot/vmlinuz-*)
  chmod 755 "$dir/$kernel" && ln -s "../$kernel" "$dir/rdmad-bin/vmlinuz"
}

# Unpacks a package, and what it depends on and this system lacks, into DIR, and writes DIR/rdmad-bin/PROGRAM for its
# programs: scripts that set the library path and start the program.
_rdmad_tool_unpack() {
  if [[ $1 == linux-image-* ]]; then
    _rdmad_kernel_unpack "$@"
    return
  fi
  local package=$1 dir=$2 final=$3 packages libraries program path
  _rdmad_known "$package" || _rdmad_apt update || true
  packages=$(LC_ALL=C apt-get install --simulate --no-install-recommends "$package" 2>/dev/null </dev/null |
    awk '$1 == "Inst" && $3 !~ /^\[/ && $2 !~ /^(fonts-|libjs-)/ { print $2 }')
  case " $(printf '%s' "$packages" | tr '\n' ' ') " in
    *" $package "*) ;;
    *) packages="$packages $package" ;; # installed, so not in the simulation
  esac
  # shellcheck disable=SC2086  # one word a package
  _rdmad_tool_download "$dir" $packages || return 1
  libraries=$(find "$dir" -name 'lib*.so*' -printf '%h\n' | sort -u)
  # Links that a package makes when it is configured, which unpacking does not do.
  # shellcheck disable=SC2086
  [ -z "$libraries" ] || /sbin/ldconfig -n $libraries
  libraries=$(printf '%s' "$libraries" | sed "s|^$dir|$final|" | paste -sd:)
  mkdir -p "$dir/rdmad-bin"
  for program in $(_rdmad_list tools | sed -n "s/^$package?\{0,1\}:\(.*\)/\1/p"); do
    for path in usr/bin usr/sbin bin sbin; do
      [ -x "$dir/$path/$program" ] || continue
      {
        printf '#!/bin/sh\n'
        # shellcheck disable=SC2016  # the script expands it
        printf 'export LD_LIBRARY_PATH="%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n' "$libraries"
        _rdmad_tool_environment "$package" "$final" | sed 's/\([^=]*\)=\(.*\)/export \1="\2"/'
        printf 'exec "%s/%s/%s" "$@"\n' "$final" "$path" "$program"
      } >"$dir/rdmad-bin/$program"
      chmod +x "$dir/rdmad-bin/$program"
      break
    done
  done
}

rdmad_tool() {
  local program=$1 package tools installed lock
  package=$(_rdmad_tool_package "$program")
  if [ -z "$package" ]; then
    _rdmad_say "$program is not in bazel/packages/tools.txt"
    return 1
  fi
  tools=$(_rdmad_tools_dir)
  if [ -z "${RDMAD_TOOLS_UNPACK:-}" ]; then
    installed=$(PATH=/usr/bin:/usr/sbin:/bin:/sbin command -v "$program") && printf '%s\n' "$installed" && return 0
  fi
  # A folder without the program is of before the program was in the list.
  if [ ! -x "$tools/$package/rdmad-bin/$program" ]; then
    mkdir -p "$tools" || return 1
    exec {lock}>"$tools/.lock"
    flock "$lock"
    if [ ! -x "$tools/$package/rdmad-bin/$program" ]; then
      _rdmad_say "unpacking $package into $tools"
      rm -rf "$tools/.new"
      mkdir "$tools/.new"
      if ! _rdmad_tool_unpack "$package" "$tools/.new" "$tools/$package" ||
        ! rm -rf "${tools:?}/$package" || ! mv "$tools/.new" "$tools/$package"; then
        rm -rf "$tools/.new"
        exec {lock}>&-
        _rdmad_say "$program cannot be fetched; install the Debian package $package"
        return 1
      fi
    fi
    exec {lock}>&-
  fi
  if [ ! -x "$tools/$package/rdmad-bin/$program" ]; then
    _rdmad_say "$program is not in the Debian package $package"
    return 1
  fi
  printf '%s\n' "$tools/$package/rdmad-bin/$program"
}

rdmad_tools() {
  local package programs program failed=0
  while IFS=: read -r package programs; do
    [[ $package == *\? ]] && continue
    for program in $programs; do
      rdmad_tool "$program" >/dev/null || failed=1
    done
  done < <(_rdmad_list tools)
  return "$failed"
}

rdmad_bazel() {
  local command=$1 flags=() base=()
  shift
  # .bazelrc says ~/.cache/rdmad-bazel, where Bazel takes ~ from the password file.
  case $command in
    build | test | run) flags+=("--disk_cache=${XDG_CACHE_HOME:-$HOME/.cache}/rdmad-bazel") ;;
  esac
  if [ -n "${CI:-}" ] || [ ! -t 2 ]; then flags+=(--curses=no --color=no --noshow_progress); fi
  if [ -n "${RDMAD_BAZEL_BASE:-}" ]; then
    base=("--output_base=$RDMAD_BAZEL_BASE")
    # The links in the source tree are the usual server's.
    case $command in build | test | run) flags+=(--symlink_prefix=/) ;; esac
  fi
  (cd "$_rdmad_root" && /usr/bin/bazel "${base[@]}" "$command" "${flags[@]}" "$@" </dev/null)
}
