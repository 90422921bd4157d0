// What one engine drives for all soft devices: the transport, and the UDP ports that carry its
// packets.
//
//   socket -> UdpPort -> (QP 1? MadRing : Transport::OnPacket)          Transport::DoWork -> Send()
//   -> UdpPort -> socket
//   group's socket -> MulticastPort -> Transport::OnMulticast
//   another engine's QP -> its StrayRing           our StrayRing -> Transport::OnPacket
//   a QP's first data -> MadRing
//
// A turn receives a bounded number of messages from the ports that have some, then lets the
// transport work. Which ports have some: those that had some last time are simply tried; for the
// others one epoll_wait on an epoll instance of our own tells. That instance is also the one
// descriptor that the engine sleeps on, so ports may come and go without the engine noticing. While
// nothing arrives, the sockets are asked at most once per microsecond, so that an engine that spins
// on shared-memory rings does not spend its turns in system calls.
//
// Thread: engine, but for construction and transport(). Owner: the daemon; outlives its ports and
// the QPs on it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/thread_owner.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/mad_ring.h"
#include "daemon/device/soft/mr_keys.h"
#include "daemon/device/soft/multicast_port.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/port_list.h"
#include "daemon/device/soft/stray_ring.h"
#include "daemon/device/soft/transport.h"
#include "daemon/device/soft/udp_counters.h"
#include "daemon/device/soft/udp_port.h"
#include "daemon/device/soft/udp_rx.h"

namespace rdmad::soft {

class SoftDataPath final : public device::DataPath,
                           private PacketTx,
                           private PacketRx,
                           private StrayPackets,
                           private FirstDataSink {
 public:
  // `mads` (for packets to QP 1) and `async` outlive the data path.
  // Errors: ResourceExhausted (no descriptor for the epoll instance).
  static absl::StatusOr<std::unique_ptr<SoftDataPath>> Create(MadRing* mads,
                                                              device::AsyncSink* async,
                                                              const TransportConfig& config = {});
  ~SoftDataPath() override;

  // There are several engines: this is the path of `engine`; `rings` are theirs, by their index,
  // and outlive the path; the keys of memory are the same on all. Before it runs. Errors:
  // ResourceExhausted (the kernel would not watch).
  absl::Status JoinEngines(uint32_t engine, std::vector<StrayRing*> rings,
                           std::shared_ptr<MrKeys> keys);

  int DoWork(TimeNs now) noexcept override;
  TimeNs NextDeadline(TimeNs now) noexcept override;
  std::span<const int> PollFds() const noexcept override { return poll_fds_; }
  uint32_t PollFdsGeneration() const noexcept override { return 0; }

  // For creating objects on it; the transport says which of its methods are for which thread.
  Transport& transport() noexcept { return transport_; }

  // By way of SoftPort. A port whose socket the kernel would not watch (out of memory or watches)
  // is still asked whenever another one is busy.
  void AddPort(UdpPort* port) noexcept;
  void RemovePort(UdpPort* port) noexcept;
  // By way of a group's attachments; the same for the groups that QPs are in.
  void AddMulticastPort(MulticastPort* port) noexcept;
  void RemoveMulticastPort(MulticastPort* port) noexcept;

 private:
  SoftDataPath(UniqueFd epoll_fd, MadRing* mads, device::AsyncSink* async,
               const TransportConfig& config);

  // PacketTx, called by the transport.
  size_t Send(const Flow& flow, std::span<const TxPacket> packets) noexcept override;
  // PacketRx, called by a port within Receive().
  void OnPacket(const Flow& flow, const wire::PacketView& packet) noexcept override;
  bool IsOwn(const IpAddress& address) const noexcept override {
    return transport_.IsLocalAddress(address);
  }
  // StrayPackets, called by the transport.
  bool OnStray(const Flow& flow, const wire::PacketView& packet) noexcept override;
  // FirstDataSink, called by the transport.
  void OnFirstData(const Flow& flow, uint32_t qpn, uint32_t peer_qpn) noexcept override {
    mads_->OnFirstData(flow, qpn, peer_qpn);
  }

  int ReceiveAll(TimeNs now) noexcept;
  template <typename Port>
  int ReceiveFrom(Port& port, PacketRx& up) noexcept;
  int ReceiveFromGroups() noexcept;
  [[nodiscard]] bool Watch(int fd, void* port) noexcept;
  void Unwatch(int fd) noexcept;
  void MarkReadyPorts() noexcept;
  [[nodiscard]] UdpPort* FindPort(const IpAddress& local) noexcept;

  const UniqueFd epoll_fd_;
  const std::array<int, 1> poll_fds_;
  MadRing* const mads_;
  // Empty, and null, while there is one engine.
  std::vector<StrayRing*> rings_;
  StrayRing* own_ring_ = nullptr;
  Transport transport_;
  UdpRxBuffers rx_buffers_;
  PortList<UdpPort> ports_;
  PortList<MulticastPort> groups_;
  UdpPort* last_port_ = nullptr;  // that Send() used
  TimeNs now_ = 0;                // of this turn
  TimeNs last_asked_ = 0;         // when a socket was last asked
  bool any_hot_ = false;
  uint32_t hot_turns_ = 0;  // turns since the quiet ports were last looked at
  bool path_full_ = false;  // a Send() of this turn took less than it was offered
  ThreadOwner owner_;
};

}  // namespace rdmad::soft
