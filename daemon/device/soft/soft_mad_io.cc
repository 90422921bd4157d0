#include "daemon/device/soft/soft_mad_io.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "daemon/wire/cm/cm_packet.h"
#include "daemon/wire/icrc.h"

namespace rdmad::soft {
absl::StatusOr<std::unique_ptr<SoftMadIo>> SoftMadIo::Create() {
  UniqueFd wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) return absl::ErrnoToStatus(errno, "soft_mad_io: eventfd");
  return std::unique_ptr<SoftMadIo>(new SoftMadIo(std::move(wake_fd)));
}

MadRing* SoftMadIo::AddRing() {
  rings_.push_back(std::make_unique<MadRing>(wake_fd_.get()));
  return rings_.back().get();
}

void SoftMadIo::AddPort(UdpPort* port) {
  ports_[port->local()] = port;
}

void SoftMadIo::RemovePort(UdpPort* port) {
  const auto found = ports_.find(port->local());
  if (found != ports_.end() && found->second == port) ports_.erase(found);
}

bool SoftMadIo::SendMad(const Flow& flow, std::span<const uint8_t, kMadBytes> mad) noexcept {
  const auto found = ports_.find(flow.local);
  if (found == ports_.end()) return false;
  UdpPort& port = *found->second;
  std::array<uint8_t, wire::kCmPacketBytes> packet;
  wire::BuildCmPacket(wire::IcrcFlow(flow.local, flow.remote, port.port(), port.port()), next_psn_,
                      mad, packet);
  ++next_psn_;
  return port.SendMadPacket(flow, packet);
}

bool SoftMadIo::Receive(ReceivedMad* out) noexcept {
  if (PopAny(out)) return true;
  // Empty: take the wake-up back, then look once more. An engine puts its MAD in before it wakes,
  // so a MAD that this second look misses comes with a wake-up that has not been taken back.
  uint64_t wakes;
  [[maybe_unused]] const ssize_t got = ::read(wake_fd_.get(), &wakes, sizeof(wakes));
  if (!PopAny(out)) return false;
  // There may be more behind it, and the caller may stop here: keep the descriptor readable.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
  return true;
}

bool SoftMadIo::PopAny(ReceivedMad* out) noexcept {
  for (size_t i = 0; i < rings_.size(); ++i) {
    const size_t index = (next_ring_ + i) % rings_.size();
    if (!rings_[index]->Pop(out)) continue;
    next_ring_ = index + 1;
    return true;
  }
  return false;
}

std::vector<device::CounterValue> SoftMadIo::Counters() const {
  std::vector<device::CounterValue> sums;
  for (const auto& ring : rings_) {
    std::vector<device::CounterValue> values;
    ring->AppendCounters(&values);
    if (sums.empty()) {
      sums = std::move(values);
      continue;
    }
    for (size_t i = 0; i < sums.size(); ++i) sums[i].value += values[i].value;
  }
  return sums;
}

}  // namespace rdmad::soft
