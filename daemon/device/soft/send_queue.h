// The send queue of one QP: posted WRs in order, as fixed arrays made at creation.
//
// Indices run free: a WR's index is how many were posted before it. WRs leave at the front when
// they complete. PSNs are given out at the post, since nothing but the queue's own WRs takes any.
//
// Thread: engine, but for construction. Owner: the requester.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>

#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/sge_cursor.h"
#include "daemon/device/types.h"
#include "daemon/wire/ids.h"

namespace rdmad::soft {

struct SendWqe {
  uint64_t wr_id;
  uint64_t remote_addr;
  uint64_t compare_add;
  uint64_t swap;
  uint32_t rkey;
  uint32_t imm_be;  // or the key to invalidate
  uint32_t length_bytes;
  uint32_t packet_count;  // PSNs that the WR takes: packets sent, or responses awaited
  wire::Psn first_psn;
  device::WrOpcode opcode;
  uint8_t flags;  // shm::kWork...
  uint8_t num_sge;
  device::WcStatus verdict;  // found at the post; not kSuccess: fails when its turn comes
  uint32_t bind_lkey;        // kBindMw

  bool is_read() const noexcept { return opcode == device::WrOpcode::kRdmaRead; }
  bool is_atomic() const noexcept {
    return opcode == device::WrOpcode::kCompareSwap || opcode == device::WrOpcode::kFetchAdd;
  }
  // Changes keys on this side and takes no PSN.
  bool is_local() const noexcept { return packet_count == 0; }
  // Takes an answer with data; an ACK alone does not complete it.
  bool wants_response() const noexcept { return is_read() || is_atomic(); }
  bool has_imm() const noexcept {
    return opcode == device::WrOpcode::kSendWithImm ||
           opcode == device::WrOpcode::kRdmaWriteWithImm;
  }
  bool is_send() const noexcept {
    return opcode == device::WrOpcode::kSend || opcode == device::WrOpcode::kSendWithImm ||
           opcode == device::WrOpcode::kSendWithInv;
  }
  bool is_write() const noexcept {
    return opcode == device::WrOpcode::kRdmaWrite || opcode == device::WrOpcode::kRdmaWriteWithImm;
  }
  bool is_inline() const noexcept { return (flags & shm::kWorkInline) != 0; }
  wire::Psn end_psn() const noexcept { return first_psn + packet_count; }
};

class SendQueue {
 public:
  SendQueue(uint32_t depth, uint32_t max_sge, uint32_t max_inline_bytes)
      : depth_(depth),
        mask_(std::bit_ceil(depth == 0 ? 1 : depth) - 1),
        // Inline data takes the place of SGEs: up to three pieces of the client's ring.
        stride_(std::max(max_sge, max_inline_bytes == 0 ? 1u : kInlinePieces)),
        wqes_(std::make_unique_for_overwrite<SendWqe[]>(mask_ + 1)),
        sges_(std::make_unique_for_overwrite<device::Sge[]>(size_t{mask_ + 1} * stride_)) {}

  bool full() const noexcept { return tail_ - head_ >= depth_; }
  bool empty() const noexcept { return tail_ == head_; }
  uint32_t head() const noexcept { return head_; }  // index of the oldest WR that is not done
  uint32_t tail() const noexcept { return tail_; }  // index that the next post gets
  wire::Psn next_psn() const noexcept { return next_psn_; }  // the same for PSNs

  SendWqe& operator[](uint32_t index) noexcept { return wqes_[index & mask_]; }
  const SendWqe& operator[](uint32_t index) const noexcept { return wqes_[index & mask_]; }
  std::span<const device::Sge> Sges(uint32_t index) const noexcept {
    return {&sges_[size_t{index & mask_} * stride_], (*this)[index].num_sge};
  }

  // Copies what must outlive the post. The queue must not be full, and `wr` within the QP's
  // capabilities. `length_bytes` and `packet_count` as the WR's.
  void Push(const device::SendWr& wr, uint8_t flags, uint32_t length_bytes, uint32_t packet_count,
            device::WcStatus verdict) noexcept {
    SendWqe& wqe = (*this)[tail_];
    device::Sge* sges = &sges_[size_t{tail_ & mask_} * stride_];
    wqe = {.wr_id = wr.wr_id,
           .remote_addr = wr.remote_addr,
           .compare_add = wr.compare_add,
           .swap = wr.swap,
           .rkey = wr.rkey,
           .imm_be = wr.imm_be,
           .length_bytes = length_bytes,
           .packet_count = packet_count,
           .first_psn = next_psn_,
           .opcode = wr.opcode,
           .flags = flags,
           .num_sge = 0,
           .verdict = verdict,
           .bind_lkey = wr.bind_lkey};
    if (wqe.is_inline()) {
      for (const std::span<const std::byte> piece : wr.inline_data.pieces) {
        if (piece.empty()) continue;
        sges[wqe.num_sge++] = {.addr = reinterpret_cast<uintptr_t>(piece.data()),
                               .length_bytes = static_cast<uint32_t>(piece.size()),
                               .lkey = 0};
      }
    } else {
      for (const device::Sge& sge : wr.sges) sges[wqe.num_sge++] = sge;
    }
    next_psn_ += packet_count;
    ++tail_;
  }

  // Takes out the oldest.
  void Pop() noexcept { ++head_; }

  void Reset(wire::Psn first_psn) noexcept {
    head_ = tail_ = 0;
    next_psn_ = first_psn;
  }

 private:
  static constexpr uint32_t kInlinePieces = std::tuple_size_v<decltype(device::InlineData::pieces)>;

  const uint32_t depth_;
  const uint32_t mask_;
  const uint32_t stride_;  // SGEs per WR
  std::unique_ptr<SendWqe[]> wqes_;
  std::unique_ptr<device::Sge[]> sges_;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
  wire::Psn next_psn_;
};

}  // namespace rdmad::soft
