// Receives that are not posted yet: a chain for one queue.
//
// Thread: engine. Owner: VerbsDataPath.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <span>

#include "daemon/device/types.h"
#include "proto/shm/work_queue.h"

namespace rdmad::verbs {

class RecvBatch {
 public:
  static constexpr uint32_t kMax = 32;

  [[nodiscard]] uint32_t count() const noexcept { return count_; }
  [[nodiscard]] bool full() const noexcept { return count_ == kMax; }

  // Not if it is full. `sges` are at most shm::kMaxSge.
  void Append(uint64_t number, std::span<const device::Sge> sges) noexcept {
    ibv_sge* const first = &sge_pool_[size_t{count_} * shm::kMaxSge];
    for (size_t i = 0; i < sges.size(); ++i) {
      first[i] = {sges[i].addr, sges[i].length_bytes, sges[i].lkey};
    }
    ibv_recv_wr& out = wrs_[count_];
    out = {number, nullptr, first, static_cast<int>(sges.size())};
    if (count_ != 0) wrs_[count_ - 1].next = &out;
    ++count_;
  }
  // The chain, good until the next Append(); afterwards there is none.
  ibv_recv_wr* Take() noexcept {
    count_ = 0;
    return wrs_.data();
  }

 private:
  uint32_t count_ = 0;
  std::array<ibv_recv_wr, kMax> wrs_;
  std::array<ibv_sge, size_t{kMax} * shm::kMaxSge> sge_pool_;
};

}  // namespace rdmad::verbs
