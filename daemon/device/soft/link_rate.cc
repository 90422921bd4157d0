#include "daemon/device/soft/link_rate.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <iterator>

#include "daemon/base/unique_fd.h"

namespace rdmad::soft {

uint32_t InterfaceMbps(const std::string& netdev) noexcept {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return 0;
  // The older of two commands: all that it cannot say are modes of links.
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  ifreq request{};
  netdev.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&command);
  if (::ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return 0;
  const uint32_t mbps = ethtool_cmd_speed(&command);
  return mbps == static_cast<uint32_t>(SPEED_UNKNOWN) ? 0 : mbps;
}

device::LinkRate LinkRateOf(uint32_t mbps) noexcept {
  constexpr uint8_t k1x = 1, k4x = 2, k8x = 4;
  constexpr uint8_t kSdr = 1, kQdr = 4, kEdr = 32, kHdr = 64, kNdr = 128;
  constexpr struct {
    uint32_t mbps;
    device::LinkRate rate;
  } kRates[] = {
      {2'500, {k1x, kSdr}},   {10'000, {k1x, kQdr}},  {25'000, {k1x, kEdr}},
      {40'000, {k4x, kQdr}},  {50'000, {k1x, kHdr}},  {100'000, {k4x, kEdr}},
      {200'000, {k4x, kHdr}}, {400'000, {k4x, kNdr}}, {800'000, {k8x, kNdr}},
  };
  for (const auto& row : kRates) {
    if (mbps <= row.mbps) return row.rate;
  }
  return std::end(kRates)[-1].rate;
}

}  // namespace rdmad::soft
