// Posted receives in order, as fixed arrays made at creation.
//
// Whoever receives takes the oldest one out, as a copy, when a message begins to use it; so a queue
// that several QPs share works the same. Thread: engine, but for construction. Owner: a QP or an
// SRQ.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>

#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/sge_cursor.h"
#include "daemon/device/types.h"

namespace rdmad::soft {

// A receive that a message is using.
struct ReceiveWqe {
  uint64_t wr_id = 0;
  uint64_t capacity_bytes = 0;
  uint8_t num_sge = 0;
  std::array<device::Sge, kMaxSge> storage;

  std::span<const device::Sge> sges() const noexcept { return {storage.data(), num_sge}; }
};

class ReceiveQueue {
 public:
  ReceiveQueue(uint32_t depth, uint32_t max_sge)
      : depth_(depth),
        mask_(std::bit_ceil(depth == 0 ? 1 : depth) - 1),
        stride_(max_sge == 0 ? 1 : max_sge),
        slots_(std::make_unique_for_overwrite<Slot[]>(mask_ + 1)),
        sges_(std::make_unique_for_overwrite<device::Sge[]>(size_t{mask_ + 1} * stride_)) {}

  bool full() const noexcept { return tail_ - head_ >= depth_; }
  bool empty() const noexcept { return tail_ == head_; }
  uint32_t size() const noexcept { return tail_ - head_; }
  // Of the oldest one; the queue must not be empty.
  uint64_t next_capacity_bytes() const noexcept {
    const Slot& slot = slots_[head_ & mask_];
    return TotalBytes({&sges_[size_t{head_ & mask_} * stride_], slot.num_sge});
  }

  // Must not be full, and `wr` within the queue's capabilities.
  void Push(const device::RecvWr& wr) noexcept {
    slots_[tail_ & mask_] = {wr.wr_id, static_cast<uint32_t>(wr.sges.size())};
    std::copy(wr.sges.begin(), wr.sges.end(), &sges_[size_t{tail_ & mask_} * stride_]);
    ++tail_;
  }

  // Must not be empty.
  void Pop(ReceiveWqe* out) noexcept {
    const Slot& slot = slots_[head_ & mask_];
    const device::Sge* sges = &sges_[size_t{head_ & mask_} * stride_];
    out->wr_id = slot.wr_id;
    out->num_sge = static_cast<uint8_t>(slot.num_sge);
    std::copy(sges, sges + slot.num_sge, out->storage.begin());
    out->capacity_bytes = TotalBytes(out->sges());
    ++head_;
  }

  void Clear() noexcept { head_ = tail_ = 0; }

 private:
  struct Slot {
    uint64_t wr_id;
    uint32_t num_sge;
  };

  const uint32_t depth_;
  const uint32_t mask_;
  const uint32_t stride_;
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<device::Sge[]> sges_;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

}  // namespace rdmad::soft
