// Networks of a test's own: nothing here touches the host's interfaces, addresses or ports, and all
// of it vanishes with the processes that are in it, however they end.
//
// Namespaces are nameless (a descriptor holds each), so tests may run side by side.
// Needs root, or unprivileged user namespaces; tests that cannot have them skip with the reason.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::testing {

// Puts this process, with all that it starts, into a network namespace with nothing but a loopback
// interface (127.0.0.0/8 and ::1), if it is allowed to. To be called first, while the process has
// one thread; later calls only answer. OK, or why it stays where it is.
const absl::Status& EnterPrivateNetwork();

// A network namespace.
class NetNamespace {
 public:
  // Empty but for a loopback interface that is up. Errors: PermissionDenied.
  static absl::StatusOr<NetNamespace> Create();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  // Runs a program in it, for example {"ip", "link", "set", "lo", "up"}. Errors: Internal with the
  // program's output.
  absl::Status Run(const std::vector<std::string>& argv) const;
  // The same with the words of `command`; no quoting.
  absl::Status Run(const std::string& command) const;
  // Calls `work` on a thread that is in it: sockets opened there belong to it.
  void Call(const std::function<void()>& work) const;

 private:
  explicit NetNamespace(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Makes a veth pair, one end in each namespace. Both ends are down and have no address.
absl::Status AddVeth(const NetNamespace& a, const std::string& name_a, const NetNamespace& b,
                     const std::string& name_b);

// The interface sends nothing but packets that fit its MTU, with their checksums in them: batches
// (UDP_SEGMENT) and checksums are left to no one behind it. What a capture or a forwarder gets is
// then what would be on a wire.
absl::Status SendWirePackets(const NetNamespace& network, const std::string& interface);

// Delays, drops, repeats or reorders what the interface sends: `what` are the words behind
// "netem" of tc-netem(8). Errors: Unimplemented (this kernel has no netem).
absl::Status Netem(const NetNamespace& network, const std::string& interface,
                   const std::string& what);

}  // namespace rdmad::testing
