#include "tests/support/rxe_captures.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace rdmad::testing {
namespace {

constexpr char kFolder[] = "tests/data/rxe-pcaps";  // below the runfiles, where tests start
constexpr uint16_t kRocePort = 4791;

std::vector<RxePacket> ReadAll() {
  // The frames are never freed: packets point into them.
  static auto& frames = *new std::vector<std::vector<PcapFrame>>();
  std::vector<RxePacket> packets;
  for (const std::string& path : ListPcaps(kFolder)) {
    frames.push_back(ReadPcap(path));
    const std::string name = std::filesystem::path(path).stem().string();
    int number = 0;
    for (const PcapFrame& frame : frames.back()) {
      const std::optional<UdpDatagram> udp = UdpOf(frame);
      if (!udp.has_value() || udp->destination_port != kRocePort) continue;
      packets.push_back({name, number++, *udp});
    }
  }
  return packets;
}

}  // namespace

std::string RxePacket::ToString() const {
  return file + " #" + std::to_string(number);
}

const std::vector<RxePacket>& RxePackets() {
  static const auto& packets = *new std::vector<RxePacket>(ReadAll());
  return packets;
}

std::vector<RxePacket> RxePacketsOf(const std::string& file) {
  std::vector<RxePacket> result;
  for (const RxePacket& packet : RxePackets()) {
    if (packet.file == file) result.push_back(packet);
  }
  if (result.empty()) {
    std::fprintf(stderr, "no packets in capture %s\n", file.c_str());
    std::abort();
  }
  return result;
}

}  // namespace rdmad::testing
