// The multicast groups that QPs of one soft device are in, and how a QP comes into one.
//
// A group's port (multicast_port.h) lives as long as somebody is attached, and is on the data path
// as long as an engine knows of one: the first attachment that the engine activates brings it
// there, the last one takes it away.
//
// Thread: control. Owner: the device and the attachments, together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/multicast_port.h"
#include "daemon/device/soft/soft_data_path.h"
#include "daemon/device/soft/udp_counters.h"

namespace rdmad::soft {

class MulticastGroups : public std::enable_shared_from_this<MulticastGroups> {
 public:
  static constexpr uint32_t kMaxGroups = 256;
  static constexpr uint32_t kMaxQpsPerGroup = 4096;

  // Groups are joined on this interface.
  explicit MulticastGroups(uint32_t interface_index) : interface_index_(interface_index) {}

  // See Context::AttachMulticast(). `path` outlives the result, which keeps this object alive.
  // Errors: InvalidArgument (not a UD QP of this device kind, no multicast address),
  // ResourceExhausted (a limit; says which); those of OpenMulticastSocket().
  absl::StatusOr<std::unique_ptr<device::EngineObject>> Attach(SoftDataPath& path, device::Qp& qp,
                                                               const IpAddress& group,
                                                               uint16_t udp_port);

  size_t size() const noexcept;
  // Of all groups that there ever were. Any thread.
  const UdpCounters& counters() const noexcept { return counters_; }
  // What the kernel dropped because a group's socket was full.
  uint64_t SocketDropCount() const noexcept;

 private:
  absl::StatusOr<std::shared_ptr<MulticastPort>> FindOrOpen(const IpAddress& group,
                                                            uint16_t udp_port);

  const uint32_t interface_index_;
  UdpCounters counters_;
  uint64_t drops_of_gone_ports_ = 0;
  std::map<IpAddress, std::weak_ptr<MulticastPort>> ports_;
};

}  // namespace rdmad::soft
