#include "daemon/engine/cq_port.h"

#include <bit>

#include "daemon/base/check.h"
#include "daemon/engine/queue_pair_port.h"
#include "daemon/engine/shm_copy.h"

namespace rdmad::engine {

using device::Wc;
using device::WcStatus;

ShmCqPort::ShmCqPort(EngineContext& context, const CqPortInit& init)
    : context_(context),
      session_(static_cast<ShmSessionPort&>(*init.session)),
      channel_(static_cast<ShmChannelPort*>(init.channel)),
      header_(reinterpret_cast<shm::CqHeader*>(init.ring)),
      entries_(init.ring + sizeof(shm::CqHeader)),
      mask_(init.capacity - 1),
      capacity_(init.capacity) {
  RD_CHECK(init.ring != nullptr && std::has_single_bit(capacity_));
  channel_member_.cq_handle = init.cq_handle;
  overrun_event_.kind = EngineEvent::Kind::kCqOverrun;
  overrun_event_.token = init.cq_token;
}

void ShmCqPort::Activate(device::TimeNs) noexcept {}

void ShmCqPort::Deactivate(device::TimeNs) noexcept {
  RD_CHECK(users_.empty(), "a CQ's QPs go before it");
  if (channel_ != nullptr) channel_->Forget(channel_member_);
  context_.events.Remove(overrun_event_);
  Unlink();  // from the overrun list
}

void ShmCqPort::OnCompletion(const Wc& wc) noexcept {
  if (broken_ || !HasRoom()) {
    session_.counters().completions_dropped.Add(1);
    return;
  }
  shm::Cqe cqe{};
  cqe.wr_id = wc.wr_id;
  cqe.status = static_cast<uint8_t>(wc.status);
  cqe.opcode = static_cast<uint8_t>(wc.opcode);
  cqe.flags = wc.flags;
  cqe.byte_len = wc.byte_len;
  cqe.imm_be = wc.imm_be;
  cqe.qpn = wc.qpn;
  cqe.src_qpn = wc.src_qpn;
  cqe.vendor_err = wc.vendor_err;
  cqe.wqe_count = wc.wqe_count;
  cqe.qp_cookie = wc.qp_cookie;
  cqe.slid = wc.slid;
  cqe.service_level = wc.service_level;
  cqe.dlid_path_bits = wc.dlid_path_bits;
  CopyToShared(entries_ + size_t{tail_ & mask_} * sizeof(cqe), &cqe, sizeof(cqe));
  ++tail_;
  Count(wc);
  PublishAndNotify(wc.solicited || wc.status != WcStatus::kSuccess);
}

void ShmCqPort::OnError() noexcept {
  if (!broken_) Break();
}

bool ShmCqPort::HasRoom() noexcept {
  if (tail_ - seen_head_ < capacity_) return true;
  // Acquire, paired with the client's release: it has read the entries that it gives back.
  const uint32_t head = header_->head.load(std::memory_order_acquire);
  if (tail_ - head < capacity_) {
    seen_head_ = head;
    return true;
  }
  // Nothing was polled (equal), or the client has put nonsense there (greater).
  if (tail_ - head > capacity_) session_.counters().corrupt_rings.Add(1);
  Break();
  return false;
}

void ShmCqPort::Break() noexcept {
  broken_ = true;
  context_.overrun_cqs.PushBack(*this);
}

void ShmCqPort::FailUsers(device::TimeNs now) noexcept {
  users_.ForEach([now](CqUser& user) { user.port->MoveToError(now); });
  context_.events.Report(overrun_event_);
}

void ShmCqPort::Count(const Wc& wc) noexcept {
  LiveSessionCounters& counters = session_.counters();
  const auto index = static_cast<size_t>(wc.status);
  counters
      .completions_by_status[index < kWcStatusCount ? index
                                                    : static_cast<size_t>(WcStatus::kGeneralErr)]
      .Add(1);
  context_.completions.Add(1);
  if (wc.status == WcStatus::kSuccess && (wc.flags & shm::kCqeRecvQueue) != 0) {
    counters.recv_bytes.Add(wc.byte_len);
  }
}

void ShmCqPort::PublishAndNotify(bool solicited) noexcept {
  if (channel_ == nullptr) {
    header_->tail.store(tail_, std::memory_order_release);  // pairs with CqReader::Ready()
    return;
  }
  header_->tail.store(tail_, std::memory_order_seq_cst);
  const uint32_t armed = header_->armed.load(std::memory_order_seq_cst);  // pairs with Arm()
  if (armed == shm::kCqNotArmed || (armed == shm::kCqArmedSolicited && !solicited)) return;
  // Whatever the client has made of it meanwhile: it gets its event.
  header_->armed.exchange(shm::kCqNotArmed, std::memory_order_seq_cst);
  channel_->Notify(channel_member_);
}

}  // namespace rdmad::engine
