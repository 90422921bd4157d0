// The client's end of a completion queue (proto/shm/completion_queue.h): polls, arms, gives places
// back.
//
// Verbs' rule for sleeping, which loses no wake-up:
//   Arm(); Poll() until empty; wait on the completion channel; read its event; again.
//
// Thread: under the CQ's lock, but for Arm(), which may be called beside it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/shm/completion_queue.h"

namespace rdmad::sdk {

class CqReader {
 public:
  // `ring`: the CQ's header in the mapped arena; outlives the reader. `capacity`: a power of two.
  CqReader(shm::CqHeader* ring, uint32_t capacity) noexcept
      : header_(ring),
        entries_(reinterpret_cast<shm::Cqe*>(ring + 1)),
        mask_(capacity - 1),
        head_(ring->head.load(std::memory_order_relaxed)) {}

  CqReader(const CqReader&) = delete;
  CqReader& operator=(const CqReader&) = delete;

  // Takes up to out.size() completions, oldest first; returns how many.
  [[nodiscard]] size_t Poll(std::span<shm::Cqe> out) noexcept {
    const size_t count = std::min<size_t>(Ready(), out.size());
    if (count == 0) return 0;
    for (size_t i = 0; i < count; ++i) out[i] = EntryAt(head_ + static_cast<uint32_t>(i));
    Advance(static_cast<uint32_t>(count));
    return count;
  }

  // Asks for one CompletionEvent on the channel for the next completion that fits; what is already
  // in the queue does not count, so poll once more afterwards. Never weakens an earlier Arm().
  void Arm(bool solicited_only) noexcept {
    // Sequentially consistent, as is the load of `tail` in Poll(): the engine publishes `tail`,
    // then looks at `armed`, so one of the two sees the other.
    if (!solicited_only) {
      header_->armed.store(shm::kCqArmedAny, std::memory_order_seq_cst);
      return;
    }
    uint32_t expected = shm::kCqNotArmed;
    header_->armed.compare_exchange_strong(expected, shm::kCqArmedSolicited,
                                           std::memory_order_seq_cst);
  }

  // Drops the completions of one QP that were not polled, after showing each to `dropped`: for when it has entered RESET
  // or is gone. The others keep their order. `cookie`: Cqe::qp_cookie.
  template <typename Dropped>
  void Purge(uint32_t cookie, const Dropped& dropped) noexcept {
    const uint32_t end = head_ + Ready();
    // From the newest to the oldest, moving up those that stay.
    uint32_t to = end;
    for (uint32_t from = end; from != head_;) {
      --from;
      if (EntryAt(from).qp_cookie == cookie) {
        dropped(EntryAt(from));
        continue;
      }
      --to;
      if (to != from) EntryAt(to) = EntryAt(from);
    }
    Advance(to - head_);
  }

  // Completions that could be polled now.
  [[nodiscard]] uint32_t Ready() const noexcept {
    return header_->tail.load(std::memory_order_seq_cst) - head_;
  }
  uint32_t capacity() const noexcept { return mask_ + 1; }

 private:
  shm::Cqe& EntryAt(uint32_t index) const noexcept { return entries_[index & mask_]; }

  void Advance(uint32_t count) noexcept {
    head_ += count;
    // Release: the entries were read before the engine may write there again.
    header_->head.store(head_, std::memory_order_release);
  }

  shm::CqHeader* const header_;
  shm::Cqe* const entries_;
  const uint32_t mask_;
  uint32_t head_;
};

}  // namespace rdmad::sdk
