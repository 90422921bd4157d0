// The soft device's transport of one engine: QP and MR tables, timers, and the turn that drives the
// QPs. Sans-I/O.
//
// Packets come in by OnPacket(), go out by PacketTx; time is an argument. The socket loop, the
// simulator, the fuzzer and the unit tests drive this same class. It leaves to others: sockets and
// ICRC (udp_port), the CM (soft/cm), object creation and limits (soft_device).
//
// A QP that has something to send stands in the active list and gets a byte budget per turn; an
// idle QP costs nothing. A QP whose peer address and QPN belong to this same transport takes the
// local path: bytes are copied once, from the sender's memory to the receiver's, and no packet
// exists; errors, RNR waits, events and counters are the same.
//
// Thread: engine, but for construction. Owner: SoftDataPath.
#pragma once

#include <memory>

#include "daemon/device/device.h"
#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/packet_io.h"

namespace rdmad::soft {

class MrTable;
class MulticastGroup;
class QpTable;
struct TransportCounters;
struct TransportCore;

// Takes packets for QPNs that a transport does not have. Thread: engine.
class StrayPackets {
 public:
  virtual ~StrayPackets() = default;
  // False: there is no such QP anywhere.
  virtual bool OnStray(const Flow& flow, const wire::PacketView& packet) noexcept = 0;
};

// Hears of the first request that a connected QP takes from its peer, once until the QP is reset.
// Thread: engine.
class FirstDataSink {
 public:
  virtual ~FirstDataSink() = default;
  virtual void OnFirstData(const Flow& flow, uint32_t qpn, uint32_t peer_qpn) noexcept = 0;
};

class Transport {
 public:
  // `tx` and `async` outlive the transport.
  Transport(PacketTx* tx, device::AsyncSink* async, const TransportConfig& config = {});
  ~Transport();

  // A parsed packet with a good ICRC, for any QPN but 1. Unknown QPNs, wrong addresses and states
  // are counted and dropped.
  void OnPacket(const Flow& flow, const wire::PacketView& packet, TimeNs now) noexcept;
  // Who is asked about unknown QPNs first; outlives the transport. Before it runs.
  void SetStrayPackets(StrayPackets* strays) noexcept;
  // Outlives the transport. Before it runs.
  void SetFirstDataSink(FirstDataSink* sink) noexcept;
  // A packet to a group that QPs of this transport are in; `flow.local` is the group's address.
  void OnMulticast(MulticastGroup& group, const Flow& flow, const wire::PacketView& packet,
                   TimeNs now) noexcept;
  // Timers that are due, then the active QPs in rounds, within a budget. Returns the work done.
  int DoWork(TimeNs now) noexcept;
  // kNever, or when DoWork() must run next; `now` when QPs are still active.
  TimeNs NextDeadline(TimeNs now) noexcept;

  // Addresses whose QPs live here, for the local path.
  void AddLocalAddress(const IpAddress& address) noexcept;
  void RemoveLocalAddress(const IpAddress& address) noexcept;
  [[nodiscard]] bool IsLocalAddress(const IpAddress& address) const noexcept;

  MrTable& mrs() noexcept;
  QpTable& qps() noexcept;
  TransportCounters& counters() noexcept;  // relaxed atomics; any thread may read
  TransportCore& core() noexcept;          // for the QPs

 private:
  std::unique_ptr<TransportCore> core_;
};

}  // namespace rdmad::soft
