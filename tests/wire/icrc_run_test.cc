#include "daemon/wire/icrc_run.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "daemon/wire/opcode.h"

namespace rdmad::wire {
namespace {

// Whatever follows whatever, each packet's CRC is the one that it has alone.
TEST(IcrcRun, GivesWhatTheFlowGives) {
  std::mt19937 random(1);
  for (const bool v4 : {true, false}) {
    std::array<uint8_t, 16> a{0xfd, 0x77};
    const IpAddress source = v4 ? IpAddress::FromV4(10, 77, 0, 1) : IpAddress::FromV6(a);
    a[15] = 2;
    const IpAddress destination = v4 ? IpAddress::FromV4(10, 77, 0, 2) : IpAddress::FromV6(a);
    const IcrcFlow flow(source, destination, 4791, 4791);
    IcrcRun run(flow);
    std::vector<uint8_t> packet(200);
    for (int i = 0; i < 3000; ++i) {
      // Mostly the next one of a batch; sometimes another size, or another byte anywhere.
      const bool next = i % 3 != 0;
      if (next) {
        packet[8 + random() % 4] = static_cast<uint8_t>(random());
      } else {
        packet.resize(kBthBytes + random() % 300);
        packet[random() % packet.size()] = static_cast<uint8_t>(random());
      }
      ASSERT_EQ(run.Compute(packet), flow.Compute(packet)) << i << " size " << packet.size();
      const auto head = std::span(packet).first(kBthBytes);
      ASSERT_EQ(run.Begin(packet.size() + 4, head), flow.Begin(packet.size() + 4, head)) << i;
    }
  }
}

}  // namespace
}  // namespace rdmad::wire
