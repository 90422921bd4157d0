#include "daemon/device/soft/mad_ring.h"

#include <unistd.h>

#include <algorithm>

#include "daemon/base/check.h"
#include "daemon/wire/cm/cm_packet.h"
#include "daemon/wire/ids.h"

namespace rdmad::soft {
MadRing::MadRing(int wake_fd, uint32_t capacity)
    : wake_fd_(wake_fd), capacity_(capacity), slots_(new ReceivedMad[capacity]) {
  RD_CHECK(capacity != 0 && (capacity & (capacity - 1)) == 0, "capacity is a power of two");
}

void MadRing::OnPacket(const Flow& flow, const wire::PacketView& packet) noexcept {
  if (!wire::IsCmPacket(packet) || !wire::PKeysMatch(packet.pkey, wire::kDefaultPKey)) {
    return drop_malformed_.Add();
  }
  ReceivedMad* const slot = Claim();
  if (slot == nullptr) return drop_full_.Add();
  slot->first_data_of = {};
  slot->flow = flow;
  slot->flow.ecn = kNotEct;  // answers go out by this flow
  slot->src_qpn = packet.deth.src_qpn;
  slot->pkey = packet.pkey;
  std::copy_n(packet.payload.begin(), kMadBytes, slot->mad.begin());
  Publish();
  received_.Add();
}

void MadRing::OnFirstData(const Flow& flow, uint32_t qpn, uint32_t peer_qpn) noexcept {
  ReceivedMad* const slot = Claim();
  if (slot == nullptr) return;
  slot->first_data_of = wire::Qpn(qpn);
  slot->flow = flow;
  slot->src_qpn = wire::Qpn(peer_qpn);
  Publish();
}

ReceivedMad* MadRing::Claim() noexcept {
  const uint32_t tail = tail_.load(std::memory_order_relaxed);  // ours
  const uint32_t head =
      head_.load(std::memory_order_acquire);  // pairs with Pop(): the slot has been read
  return tail - head == capacity_ ? nullptr : &slots_[tail & (capacity_ - 1)];
}

void MadRing::Publish() noexcept {
  const uint32_t tail = tail_.load(std::memory_order_relaxed);
  tail_.store(tail + 1, std::memory_order_release);  // pairs with Pop()
  unflushed_ = true;
}

void MadRing::Flush() noexcept {
  if (!unflushed_) return;
  unflushed_ = false;
  const uint64_t one = 1;
  // It fails only if the counter would overflow, and then the descriptor is readable anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof(one));
}

bool MadRing::Pop(ReceivedMad* out) noexcept {
  const uint32_t head = head_.load(std::memory_order_relaxed);      // ours
  if (tail_.load(std::memory_order_acquire) == head) return false;  // pairs with Publish()
  *out = slots_[head & (capacity_ - 1)];
  head_.store(head + 1, std::memory_order_release);  // pairs with Publish()
  return true;
}

void MadRing::AppendCounters(std::vector<device::CounterValue>* out) const {
  out->push_back(
      {"mad_rx_packets", "packets", "connection management datagrams received", received_.Get()});
  out->push_back({"mad_rx_drop_malformed", "packets",
                  "dropped: not a connection management datagram", drop_malformed_.Get()});
  out->push_back({"mad_rx_drop_full", "packets", "dropped: the control thread did not keep up",
                  drop_full_.Get()});
}

}  // namespace rdmad::soft
