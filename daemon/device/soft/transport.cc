#include "daemon/device/soft/transport.h"

#include <algorithm>

#include "daemon/device/soft/multicast_group.h"
#include "daemon/device/soft/transport_core.h"
#include "daemon/device/soft/transport_qp.h"

namespace rdmad::soft {

namespace {

constexpr int kMaxTimersPerTurn = 1024;
constexpr int64_t kVisitBytes = 512;  // a visit costs something even if nothing comes of it

}  // namespace

Transport::Transport(PacketTx* tx, device::AsyncSink* async, const TransportConfig& config)
    : core_(std::make_unique<TransportCore>(tx, async, config)) {}

Transport::~Transport() = default;

void Transport::OnPacket(const Flow& flow, const wire::PacketView& packet, TimeNs now) noexcept {
  TransportQp* const qp = core_->qps.Find(packet.dest_qpn.value());
  // Counted where its QP is.
  if (qp == nullptr && core_->strays != nullptr && core_->strays->OnStray(flow, packet)) return;
  Count(core_->counters.rx_packets);
  Count(core_->counters.rx_payload_bytes, packet.payload.size());
  if (flow.ecn == kEcnCe) Count(core_->counters.ecn_marked);
  if (qp == nullptr) return Count(core_->counters.drop_unknown_qp);
  qp->OnPacket(flow, packet, now);
}

void Transport::SetStrayPackets(StrayPackets* strays) noexcept {
  core_->strays = strays;
}

void Transport::SetFirstDataSink(FirstDataSink* sink) noexcept {
  core_->first_data = sink;
}

void Transport::OnMulticast(MulticastGroup& group, const Flow& flow, const wire::PacketView& packet,
                            TimeNs now) noexcept {
  group.Deliver(flow, packet, core_->counters, now);
}

int Transport::DoWork(TimeNs now) noexcept {
  int work = 0;
  for (int i = 0; i < kMaxTimersPerTurn; ++i) {
    Timer* const timer = core_->timers.PopDue(now);
    if (timer == nullptr) break;
    timer->qp->OnTimer(now);
    ++work;
  }
  // One round: each QP that is active now has at most one visit, so that one whose path is full is
  // not tried again and again. Those that have more to do stand at the end of the list for the next
  // turn.
  size_t visits = core_->active.size();
  if (visits == 0) return work;
  int64_t left = core_->config.turn_budget_bytes;
  const auto share = static_cast<uint32_t>(
      std::max<uint64_t>(core_->config.qp_budget_bytes, static_cast<uint64_t>(left) / visits));
  for (; visits > 0 && left > 0; --visits) {
    ActiveNode* const node = core_->active.Pop();
    if (node == nullptr) break;  // a QP of this round went to error meanwhile
    const RunResult result = node->qp->Run(share, now);
    work += result.work;
    left -= std::max<int64_t>(result.spent_bytes, kVisitBytes);
    if (result.more) core_->active.Push(*node);
  }
  return work;
}

TimeNs Transport::NextDeadline(TimeNs now) noexcept {
  return core_->active.empty() ? core_->timers.Next() : now;
}

void Transport::AddLocalAddress(const IpAddress& address) noexcept {
  const bool room = core_->local_addresses.size() < kMaxLocalAddresses;
  if (room && !core_->IsLocal(address)) core_->local_addresses.push_back(address);
  ++core_->local_generation;
}

void Transport::RemoveLocalAddress(const IpAddress& address) noexcept {
  std::erase(core_->local_addresses, address);
  ++core_->local_generation;
}

bool Transport::IsLocalAddress(const IpAddress& address) const noexcept {
  return core_->IsLocal(address);
}

MrTable& Transport::mrs() noexcept {
  return core_->mrs;
}
QpTable& Transport::qps() noexcept {
  return core_->qps;
}
TransportCounters& Transport::counters() noexcept {
  return core_->counters;
}
TransportCore& Transport::core() noexcept {
  return *core_;
}

}  // namespace rdmad::soft
