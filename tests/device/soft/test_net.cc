#include "tests/device/soft/test_net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "daemon/base/check.h"
#include "daemon/base/unique_fd.h"
#include "daemon/wire/packet.h"

namespace rdmad::testing {
namespace {

ifreq NameRequest(const std::string& interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
  return request;
}

bool BringUp(const std::string& interface) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = NameRequest(interface);
  if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags |= IFF_UP | IFF_RUNNING;
  return ::ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0;
}

// The kernel makes a new address usable a moment later, when it has seen that nobody else has it.
bool AwaitBindable(const in6_addr& address) {
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  name.sin6_addr = address;
  for (int tries = 0; tries < 2000; ++tries) {
    const UniqueFd fd(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) return true;
    ::usleep(1000);
  }
  return false;
}

bool Enter() {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  return BringUp("lo");
}

}  // namespace

bool HavePrivateNetwork() {
  static const bool have = Enter();
  return have;
}

uint16_t TestPort() {
  if (HavePrivateNetwork()) return wire::kRoceUdpPort;
  return static_cast<uint16_t>(20000 + ::getpid() % 12000);
}

bool AddIpv6Address(const std::string& address, const std::string& interface) {
  if (!HavePrivateNetwork()) return false;
  const UniqueFd fd(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // struct in6_ifreq of linux/ipv6.h
  in6_ifreq request{};
  if (::inet_pton(AF_INET6, address.c_str(), &request.ifr6_addr) != 1) return false;
  request.ifr6_prefixlen = 128;
  request.ifr6_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
  if (::ioctl(fd.get(), SIOCSIFADDR, &request) != 0 && errno != EEXIST) return false;
  return AwaitBindable(request.ifr6_addr);
}

bool SetMtu(const std::string& interface, int mtu) {
  if (!HavePrivateNetwork()) return false;
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = NameRequest(interface);
  request.ifr_mtu = mtu;
  return ::ioctl(fd.get(), SIOCSIFMTU, &request) == 0;
}

SecondNetwork::SecondNetwork() {
  if (!HavePrivateNetwork()) return;
  here_ = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  if (::unshare(CLONE_NEWNET) != 0) return;
  BringUp("lo");
  there_ = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  Leave();
  // `ip` is another process, to which our descriptor of the namespace is a path.
  const std::string there = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(there_);
  if (!Run("ip link add left index 40 type veth peer name right index 41 netns " + there +
           " && ip link set left up")) {
    ::close(there_);
    there_ = -1;
    return;
  }
  Enter();
  Run("ip link set right up");
  Leave();
}

SecondNetwork::~SecondNetwork() {
  if (there_ >= 0) {
    Leave();
    Run("ip link del left");
    ::close(there_);
  }
  if (here_ >= 0) ::close(here_);
}

void SecondNetwork::Enter() {
  RD_CHECK(::setns(there_, CLONE_NEWNET) == 0);
}
void SecondNetwork::Leave() {
  RD_CHECK(::setns(here_, CLONE_NEWNET) == 0);
}

bool Run(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

}  // namespace rdmad::testing
