#include "tests/support/pcap.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "daemon/wire/bytes.h"

namespace rdmad::testing {
namespace {

using wire::LoadBe16;
using wire::LoadBe32;
using wire::LoadLe32;

constexpr uint32_t kMagicMicroseconds = 0xa1b2c3d4;
constexpr uint32_t kLinkTypeEthernet = 1;
constexpr size_t kFileHeaderBytes = 24;
constexpr size_t kFrameHeaderBytes = 16;
constexpr size_t kEthernetBytes = 14;
constexpr size_t kUdpBytes = 8;

[[noreturn]] void Fail(const std::string& path, const char* why) {
  std::fprintf(stderr, "pcap %s: %s\n", path.c_str(), why);
  std::abort();
}

Gid GidAt(const uint8_t* p) {
  Gid gid;
  std::memcpy(gid.data(), p, gid.size());
  return gid;
}

// Fills the IP part of `*out` and returns the bytes after the IP header, as many as the header
// says.
std::optional<std::span<const uint8_t>> StripIp(std::span<const uint8_t> frame, UdpDatagram* out) {
  const uint16_t ether_type = LoadBe16(frame.data() + 12);
  const std::span<const uint8_t> ip = frame.subspan(kEthernetBytes);
  if (ether_type == 0x0800 && ip.size() >= 20 && ip[9] == 17) {
    const size_t header_bytes = size_t{ip[0] & 0x0fu} * 4;
    const size_t total_bytes = LoadBe16(&ip[2]);
    if (header_bytes < 20 || total_bytes < header_bytes || total_bytes > ip.size()) {
      return std::nullopt;
    }
    out->source = IpAddress::FromV4(LoadBe32(&ip[12]));
    out->destination = IpAddress::FromV4(LoadBe32(&ip[16]));
    out->ipv4_id = LoadBe16(&ip[4]);
    out->dont_fragment = (ip[6] & 0x40) != 0;
    out->ip_header = ip.first(header_bytes);
    return ip.subspan(header_bytes, total_bytes - header_bytes);
  }
  if (ether_type == 0x86dd && ip.size() >= 40 && ip[6] == 17) {
    const size_t payload_bytes = LoadBe16(&ip[4]);
    if (payload_bytes > ip.size() - 40) return std::nullopt;
    out->source = IpAddress::FromV6(GidAt(&ip[8]));
    out->destination = IpAddress::FromV6(GidAt(&ip[24]));
    out->ip_header = ip.first(40);
    return ip.subspan(40, payload_bytes);
  }
  return std::nullopt;
}

}  // namespace

std::vector<PcapFrame> ReadPcap(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail(path, "cannot open");
  const std::vector<uint8_t> data{std::istreambuf_iterator<char>(file), {}};
  if (data.size() < kFileHeaderBytes || LoadLe32(data.data()) != kMagicMicroseconds) {
    Fail(path, "not a little-endian pcap file");
  }
  if (LoadLe32(&data[20]) != kLinkTypeEthernet) Fail(path, "not Ethernet");

  std::vector<PcapFrame> frames;
  for (size_t at = kFileHeaderBytes; at < data.size();) {
    if (data.size() - at < kFrameHeaderBytes) Fail(path, "cut short");
    const uint32_t captured_bytes = LoadLe32(&data[at + 8]);
    if (captured_bytes != LoadLe32(&data[at + 12])) Fail(path, "a frame was not captured whole");
    const double time_s = LoadLe32(&data[at]) + LoadLe32(&data[at + 4]) / 1e6;
    at += kFrameHeaderBytes;
    if (captured_bytes > data.size() - at) Fail(path, "cut short");
    const auto begin = data.begin() + static_cast<ptrdiff_t>(at);
    frames.push_back({time_s, {begin, begin + captured_bytes}});
    at += captured_bytes;
  }
  return frames;
}

std::vector<std::string> ListPcaps(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".pcap") paths.push_back(entry.path().string());
  }
  if (error) Fail(folder, "cannot list");
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::optional<UdpDatagram> UdpOf(const PcapFrame& frame) {
  if (frame.bytes.size() < kEthernetBytes) return std::nullopt;
  UdpDatagram datagram;
  const auto udp = StripIp(frame.bytes, &datagram);
  if (!udp.has_value() || udp->size() < kUdpBytes) return std::nullopt;
  if (LoadBe16(udp->data() + 4) != udp->size()) return std::nullopt;
  datagram.source_port = LoadBe16(udp->data());
  datagram.destination_port = LoadBe16(udp->data() + 2);
  datagram.payload = udp->subspan(kUdpBytes);
  return datagram;
}

}  // namespace rdmad::testing
