// Receives that are fetched from a ring because a message is there and finds none, between two turns
// of the ring's port.
//
// The device is in the middle of that message: so only what it takes is given to it. Whatever is
// wrong with the ring or a WR waits for the port's turn, which deals with such things.
#pragma once

#include <cstdint>

#include "daemon/engine/work_queue_reader.h"

namespace rdmad::engine {

struct EarlyReceives {
  uint32_t posted = 0;
  bool more = false;  // the port has something to look at
};

// At most so many: a message wants one.
inline constexpr uint32_t kMaxEarlyReceives = 16;

// `post` is given a RecvWr and says how that went. Thread: engine.
template <typename Post>
EarlyReceives PostEarly(WorkQueueReader& recvs, const Post& post) noexcept {
  EarlyReceives early;
  if (!recvs.Refresh()) return {.more = true};
  WrScratch scratch;  // the engine's own may be in use
  while (early.posted < kMaxEarlyReceives) {
    device::RecvWr wr{};
    const ReadResult read = recvs.NextRecv(scratch, wr);
    if (read == ReadResult::kEmpty) break;
    if (read == ReadResult::kCorrupt) return {early.posted, true};
    if (read == ReadResult::kMalformed || post(wr) != device::PostResult::kOk) {
      recvs.PutBackRecv();
      break;
    }
    ++early.posted;
  }
  if (early.posted != 0) recvs.PublishHead();
  early.more = recvs.unread_slots() != 0;
  return early;
}

}  // namespace rdmad::engine
