#include "tests/support/net_namespace.h"

#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"

namespace rdmad::testing {
namespace {

absl::Status BringLoopbackUp() {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (::ioctl(fd.get(), SIOCSIFFLAGS, &request) != 0) {
    return absl::ErrnoToStatus(errno, "bring lo up");
  }
  return absl::OkStatus();
}

// Becomes root of a user namespace of its own, where that needs no privilege.
absl::Status BecomeNamespaceRoot() {
  const uid_t uid = ::getuid();
  const gid_t gid = ::getgid();
  if (::unshare(CLONE_NEWUSER) != 0) {
    return absl::ErrnoToStatus(errno, "needs root or unprivileged user namespaces: unshare");
  }
  if (!WriteFile("/proc/self/setgroups", "deny") ||
      !WriteFile("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1\n")) ||
      !WriteFile("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1\n"))) {
    return absl::PermissionDeniedError("cannot map this user into a user namespace");
  }
  return absl::OkStatus();
}

absl::Status Enter() {
  if (::unshare(CLONE_NEWNET) != 0) {
    if (absl::Status status = BecomeNamespaceRoot(); !status.ok()) return status;
    if (::unshare(CLONE_NEWNET) != 0) {
      return absl::ErrnoToStatus(errno, "needs network namespaces: unshare");
    }
  }
  return BringLoopbackUp();
}

}  // namespace

const absl::Status& EnterPrivateNetwork() {
  static const absl::Status entered = Enter();
  return entered;
}

absl::StatusOr<NetNamespace> NetNamespace::Create() {
  absl::StatusOr<NetNamespace> result = absl::InternalError("not run");
  // unshare(2) and setns(2) concern the calling thread only.
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) != 0) {
      result = absl::ErrnoToStatus(errno, "needs network namespaces: unshare");
      return;
    }
    if (absl::Status status = BringLoopbackUp(); !status.ok()) {
      result = status;
      return;
    }
    UniqueFd fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (!fd) {
      result = absl::ErrnoToStatus(errno, "open /proc/thread-self/ns/net");
      return;
    }
    result = NetNamespace(std::move(fd));
  }).join();
  return result;
}

absl::Status NetNamespace::Run(const std::vector<std::string>& argv) const {
  ProcessOptions options;
  options.network_fd = fd();
  const absl::StatusOr<ProgramResult> result = RunProgram(argv, options);
  if (!result.ok()) return result.status();
  if (result->ok()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(absl::StrJoin(argv, " "), ": ", result->exit.ToString(), ": ", result->output));
}

absl::Status NetNamespace::Run(const std::string& command) const {
  std::istringstream words(command);
  std::vector<std::string> argv;
  for (std::string word; words >> word;) argv.push_back(word);
  return Run(argv);
}

void NetNamespace::Call(const std::function<void()>& work) const {
  std::thread([&] {
    if (::setns(fd(), CLONE_NEWNET) == 0) work();
  }).join();
}

absl::Status AddVeth(const NetNamespace& a, const std::string& name_a, const NetNamespace& b,
                     const std::string& name_b) {
  // `ip` takes a path for a namespace.
  const std::string path_of_b = absl::StrCat("/proc/", ::getpid(), "/fd/", b.fd());
  return a.Run(
      {"ip", "link", "add", name_a, "type", "veth", "peer", "name", name_b, "netns", path_of_b});
}

absl::Status SendWirePackets(const NetNamespace& network, const std::string& interface) {
  // One segment a packet: the kernel splits batches before it hands them to the interface.
  absl::Status status = network.Run("ip link set dev " + interface + " gso_max_segs 1");
  if (!status.ok()) return status;
  network.Call([&] {
    const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ethtool_value value{ETHTOOL_STXCSUM, 0};
    ifreq request{};
    std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&value);
    if (::ioctl(fd.get(), SIOCETHTOOL, &request) != 0) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("switch off tx checksums of ", interface));
    }
  });
  return status;
}

absl::Status Netem(const NetNamespace& network, const std::string& interface,
                   const std::string& what) {
  absl::Status status = network.Run("tc qdisc replace dev " + interface + " root netem " + what);
  if (!status.ok() &&
      std::string(status.message()).find("qdisc kind is unknown") != std::string::npos) {
    return absl::UnimplementedError("this kernel has no netem (sch_netem)");
  }
  return status;
}

}  // namespace rdmad::testing
