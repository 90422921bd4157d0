#include "tests/support/packet_capture.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/packet_socket.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kMaxFrameBytes = 1 << 17;

// Source: pcap-savefile(5).
struct PcapFileHeader {
  uint32_t magic = 0xa1b2c3d4;  // microseconds, this machine's byte order
  uint16_t version_major = 2;
  uint16_t version_minor = 4;
  uint32_t zone = 0;
  uint32_t significant_figures = 0;
  uint32_t snapshot_bytes = kMaxFrameBytes;
  uint32_t link_type = 1;  // Ethernet
};
struct PcapRecordHeader {
  uint32_t seconds;
  uint32_t microseconds;
  uint32_t captured_bytes;
  uint32_t original_bytes;
};

template <typename Header>
void WriteHeader(std::ofstream& file, const Header& header) {
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
}

void WriteFrame(std::ofstream& file, std::span<const uint8_t> frame) {
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  const auto bytes = static_cast<uint32_t>(frame.size());
  WriteHeader(file, PcapRecordHeader{static_cast<uint32_t>(now / 1'000'000),
                                     static_cast<uint32_t>(now % 1'000'000), bytes, bytes});
  file.write(reinterpret_cast<const char*>(frame.data()), static_cast<std::streamsize>(bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PacketCapture>> PacketCapture::Start(const NetNamespace& network,
                                                                    const std::string& interface,
                                                                    const std::string& pcap_path) {
  absl::StatusOr<UniqueFd> socket = OpenPacketSocket(network, interface, true);
  if (!socket.ok()) return socket.status();
  return std::unique_ptr<PacketCapture>(
      new PacketCapture(std::move(socket).value(), UniqueFd(::eventfd(0, EFD_CLOEXEC)), pcap_path));
}

PacketCapture::PacketCapture(UniqueFd socket, UniqueFd stop, const std::string& pcap_path)
    : socket_(std::move(socket)), stop_(std::move(stop)), pcap_path_(pcap_path) {
  thread_ = std::thread([this] { Run(); });
}

PacketCapture::~PacketCapture() {
  if (thread_.joinable()) (void)Stop();
}

absl::StatusOr<uint64_t> PacketCapture::Stop() {
  const uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof(one)) != sizeof(one)) {
    return absl::InternalError("cannot stop the capture");
  }
  thread_.join();
  if (!status_.ok()) return status_;
  return packets_;
}

void PacketCapture::Run() {
  std::ofstream file(pcap_path_, std::ios::binary | std::ios::trunc);
  WriteHeader(file, PcapFileHeader{});
  std::vector<uint8_t> buffer(kMaxFrameBytes);
  for (bool stop = false; !stop;) {
    std::array<pollfd, 2> polls = {pollfd{socket_.get(), POLLIN, 0},
                                   pollfd{stop_.get(), POLLIN, 0}};
    ::poll(polls.data(), polls.size(), -1);
    stop = polls[1].revents != 0;  // what has arrived until now is still written
    while (true) {
      const ssize_t bytes = ReceiveFrame(socket_.get(), buffer);
      if (bytes <= 0) break;
      const auto frame = std::span(buffer).first(static_cast<size_t>(bytes));
      if (!IsRoceFrame(frame)) continue;
      WriteFrame(file, frame);
      ++packets_;
    }
  }
  file.close();
  const uint32_t drops = TakeDropCount(socket_.get());
  if (drops != 0)
    status_ = absl::DataLossError(absl::StrCat("the capture lost ", drops, " frames"));
  if (file.fail()) status_ = absl::DataLossError("cannot write " + pcap_path_);
}

}  // namespace rdmad::testing
