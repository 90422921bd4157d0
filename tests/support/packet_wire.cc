#include "tests/support/packet_wire.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/packet_socket.h"

namespace rdmad::testing {
namespace {

constexpr size_t kEthernetBytes = 14;
constexpr int64_t kHoldNs = 2'000'000;
constexpr int kMaxBehind = 4;
constexpr int kBurst = 64;

int64_t NowNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

size_t IndexOf(WireDirection direction) {
  return static_cast<size_t>(direction);
}
size_t IndexOfOther(WireDirection direction) {
  return 1 - static_cast<size_t>(direction);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PacketWire>> PacketWire::Start(const NetNamespace& network,
                                                              const std::string& near_interface,
                                                              const std::string& far_interface) {
  absl::StatusOr<UniqueFd> near = OpenPacketSocket(network, near_interface);
  if (!near.ok()) return near.status();
  absl::StatusOr<UniqueFd> far = OpenPacketSocket(network, far_interface);
  if (!far.ok()) return far.status();
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  return std::unique_ptr<PacketWire>(
      new PacketWire(std::move(near).value(), std::move(far).value(), std::move(stop)));
}

PacketWire::PacketWire(UniqueFd near, UniqueFd far, UniqueFd stop)
    : sockets_{std::move(near), std::move(far)}, stop_(std::move(stop)) {
  thread_ = std::thread([this] { Run(); });
}

PacketWire::~PacketWire() {
  const uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof(one)) == sizeof(one)) thread_.join();
}

void PacketWire::SetFaults(const WireFaults& faults) {
  const std::lock_guard lock(mutex_);
  faults_ = faults;
  random_.seed(faults.seed);
}

void PacketWire::SetHook(WireHook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

WireCounts PacketWire::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void PacketWire::SetBottleneck(const BottleneckOptions& options) {
  const std::lock_guard lock(mutex_);
  bottleneck_.emplace(options);
}

BottleneckCounts PacketWire::bottleneck_counts() const {
  const std::lock_guard lock(mutex_);
  return bottleneck_ ? bottleneck_->counts() : BottleneckCounts{};
}

// Until something that is held back is due; -1: nothing is.
int64_t PacketWire::WaitNs() const {
  if (bottleneck_ && bottleneck_->NextNs() != INT64_MAX) {
    return std::max<int64_t>(0, bottleneck_->NextNs() - NowNs());
  }
  return held_[0].empty() && held_[1].empty() ? -1 : 1'000'000;
}

void PacketWire::Run() {
  std::vector<uint8_t> buffer(65536);
  while (true) {
    std::array<pollfd, 3> polls = {pollfd{sockets_[0].get(), POLLIN, 0},
                                   pollfd{sockets_[1].get(), POLLIN, 0},
                                   pollfd{stop_.get(), POLLIN, 0}};
    int64_t wait_ns = -1;
    {
      const std::lock_guard lock(mutex_);
      wait_ns = WaitNs();
    }
    const timespec wait{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
    ::ppoll(polls.data(), polls.size(), wait_ns < 0 ? nullptr : &wait, nullptr);
    if (polls[2].revents != 0) return;
    const std::lock_guard lock(mutex_);
    while (bottleneck_) {
      const std::vector<uint8_t> frame = bottleneck_->Take(NowNs());
      if (frame.empty()) break;
      SendNow(WireDirection::kAToB, frame);
    }
    for (const WireDirection direction : {WireDirection::kAToB, WireDirection::kBToA}) {
      for (int i = 0; i < kBurst; ++i) {
        const ssize_t bytes = ReceiveFrame(sockets_[IndexOf(direction)].get(), buffer);
        if (bytes <= 0) break;
        Forward(direction, std::span(buffer).first(static_cast<size_t>(bytes)));
      }
      Release(direction, false);
    }
  }
}

void PacketWire::Forward(WireDirection direction, std::span<uint8_t> frame) {
  if (!IsRoceFrame(frame)) {
    Send(direction, frame);
    return;
  }
  ++counts_.seen;
  if (hook_ && hook_(direction, frame.subspan(kEthernetBytes)) == WireVerdict::kDrop) {
    ++counts_.lost;
    return;
  }
  if (Chance(faults_.loss)) {
    ++counts_.lost;
    return;
  }
  if (Chance(faults_.reorder)) {
    ++counts_.reordered;
    const int behind = std::uniform_int_distribution<int>(1, kMaxBehind)(random_);
    held_[IndexOf(direction)].push_back(
        {std::vector<uint8_t>(frame.begin(), frame.end()), behind, NowNs() + kHoldNs});
    return;
  }
  Send(direction, frame);
  if (Chance(faults_.duplicate)) {
    ++counts_.duplicated;
    Send(direction, frame);
  }
  Release(direction, true);
}

void PacketWire::Release(WireDirection direction, bool one_passed) {
  std::vector<Held>& held = held_[IndexOf(direction)];
  if (held.empty()) return;
  const int64_t now_ns = NowNs();
  for (Held& packet : held) {
    if (one_passed) --packet.behind;
    if (packet.behind > 0 && packet.until_ns > now_ns) continue;
    Send(direction, packet.frame);
    packet.frame.clear();
  }
  std::erase_if(held, [](const Held& packet) { return packet.frame.empty(); });
}

void PacketWire::Send(WireDirection direction, std::span<const uint8_t> frame) {
  if (bottleneck_ && direction == WireDirection::kAToB) {
    bottleneck_->Offer(frame, NowNs());
  } else {
    SendNow(direction, frame);
  }
}

void PacketWire::SendNow(WireDirection direction, std::span<const uint8_t> frame) {
  // A full interface drops it, as a switch would.
  const ssize_t sent =
      ::send(sockets_[IndexOfOther(direction)].get(), frame.data(), frame.size(), 0);
  if (sent < 0 && IsRoceFrame(frame)) ++counts_.lost;
}

bool PacketWire::Chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
}

}  // namespace rdmad::testing
