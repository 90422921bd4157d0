// MadIo over the soft device's UDP ports.
//
// Receiving: the engines put MADs into rings (mad_ring.h), which share one eventfd. Sending: the
// control thread builds the packet on its stack and sends it on the port's own socket, beside the
// engine. That is safe without a lock because sendmsg(2) on one socket may be called from several
// threads, this path touches neither the engine's buffers nor its counters, and control, which
// alone owns sockets, takes a port off the list here before it closes one.
//
// Thread: control, but for the engine's side of the rings. Owner: SoftDevices' owner; outlives the
// data paths.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/soft/mad_io.h"
#include "daemon/device/soft/mad_ring.h"
#include "daemon/device/soft/udp_port.h"
#include "daemon/wire/ids.h"

namespace rdmad::soft {

class SoftMadIo final : public MadIo {
 public:
  // Errors: ResourceExhausted (no descriptor for the eventfd).
  static absl::StatusOr<std::unique_ptr<SoftMadIo>> Create();

  // A ring for one more engine. It lives as long as this object.
  MadRing* AddRing();
  // The port outlives its stay in the list.
  void AddPort(UdpPort* port);
  void RemovePort(UdpPort* port);

  bool SendMad(const Flow& flow, std::span<const uint8_t, kMadBytes> mad) noexcept override;
  bool Receive(ReceivedMad* out) noexcept override;
  int poll_fd() const noexcept override { return wake_fd_.get(); }
  bool IsLocal(const IpAddress& address) const noexcept override {
    return ports_.contains(address);
  }

  // The rings' counters, summed.
  std::vector<device::CounterValue> Counters() const;

 private:
  explicit SoftMadIo(UniqueFd wake_fd) : wake_fd_(std::move(wake_fd)) {}
  bool PopAny(ReceivedMad* out) noexcept;

  const UniqueFd wake_fd_;
  std::vector<std::unique_ptr<MadRing>> rings_;
  absl::flat_hash_map<IpAddress, UdpPort*> ports_;
  size_t next_ring_ = 0;  // so that one busy engine does not starve another's MADs
  wire::Psn next_psn_{};
};

}  // namespace rdmad::soft
