#include "tests/support/two_hosts.h"

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/base/status_macros.h"

namespace rdmad::testing {
namespace {

absl::Status BringUp(const NetNamespace& network, const std::string& interface, int mtu_bytes) {
  return network.Run(absl::StrCat("ip link set dev ", interface, " mtu ", mtu_bytes, " up"));
}

absl::Status Configure(const NetNamespace& host, int index, const TwoHostsOptions& options) {
  const std::string interface = TwoHosts::kInterface;
  if (options.wire || options.wire_packets) {
    RD_RETURN_IF_ERROR(SendWirePackets(host, interface));
  }
  RD_RETURN_IF_ERROR(
      host.Run(absl::StrCat("ip addr add ", TwoHosts::Ipv4(index), "/24 dev ", interface)));
  // Without duplicate address detection it can be used at once.
  RD_RETURN_IF_ERROR(host.Run(
      absl::StrCat("ip addr add ", TwoHosts::Ipv6(index), "/64 dev ", interface, " nodad")));
  return BringUp(host, interface, options.mtu_bytes);
}

// The kernel notices some time after both ends are up that the link has a carrier.
absl::Status WaitForCarrier(const NetNamespace& network, const std::string& interface) {
  bool running = false;
  network.Call([&] {
    const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!running && absl::Now() < deadline) {
      if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return;
      running = (request.ifr_flags & IFF_RUNNING) != 0;
      if (!running) absl::SleepFor(absl::Milliseconds(5));
    }
  });
  return running ? absl::OkStatus() : absl::UnavailableError(interface + " has no carrier");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TwoHosts>> TwoHosts::Create(const TwoHostsOptions& options) {
  std::vector<NetNamespace> hosts;
  for (int i = 0; i < 2; ++i) {
    RD_ASSIGN_OR_RETURN(NetNamespace host, NetNamespace::Create());
    hosts.push_back(std::move(host));
  }
  std::unique_ptr<TwoHosts> result(new TwoHosts(std::move(hosts)));
  if (!options.wire) {
    RD_RETURN_IF_ERROR(AddVeth(result->host(0), kInterface, result->host(1), kInterface));
  } else {
    RD_ASSIGN_OR_RETURN(const NetNamespace middle, NetNamespace::Create());
    RD_RETURN_IF_ERROR(AddVeth(result->host(0), kInterface, middle, "near"));
    RD_RETURN_IF_ERROR(AddVeth(result->host(1), kInterface, middle, "far"));
    RD_RETURN_IF_ERROR(BringUp(middle, "near", options.mtu_bytes));
    RD_RETURN_IF_ERROR(BringUp(middle, "far", options.mtu_bytes));
    // Its sockets keep the namespace.
    RD_ASSIGN_OR_RETURN(result->wire_, PacketWire::Start(middle, "near", "far"));
  }
  for (int i = 0; i < 2; ++i) RD_RETURN_IF_ERROR(Configure(result->host(i), i, options));
  for (int i = 0; i < 2; ++i) RD_RETURN_IF_ERROR(WaitForCarrier(result->host(i), kInterface));
  return result;
}

}  // namespace rdmad::testing
