// The engine's end of a work queue (proto/shm/work_queue.h): turns slots that a client wrote into
// checked WRs.
//
// The whole ring is client-writable and may change while it is read. So the ring's size and the
// reader's own index are private, `tail` is loaded once per Refresh(), each slot is copied once and
// only the copy is looked at. What can be wrong is told apart by what it means:
//   kCorrupt    the indices or a WR's slot count make no sense: nobody knows where the next WR
//               begins, so nothing more is read until Forget();
//   kMalformed  one WR says something that no correct library says; the next one can be read.
//
// Thread: engine. Owner: the port.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/device/types.h"
#include "proto/shm/work_queue.h"

namespace rdmad::engine {

// Where a WR's SGEs are copied to; one per engine.
struct WrScratch {
  std::array<shm::WorkSge, shm::kMaxSge> sges;
};

enum class ReadResult : uint8_t { kOk, kEmpty, kMalformed, kCorrupt };

class WorkQueueReader {
 public:
  // No ring: always empty.
  WorkQueueReader() = default;
  // `ring`: WorkQueueHeader and `slot_count` slots (a power of two) in the daemon's mapping;
  // outlives the reader.
  WorkQueueReader(std::byte* ring, uint32_t slot_count) noexcept;

  // Looks at the client's `tail`: what is posted later waits for the next call. False: kCorrupt.
  [[nodiscard]] bool Refresh() noexcept;

  // The next WR that Refresh() saw. The spans in `wr` point into `scratch` (valid until the next
  // call) and, for inline data, into the ring. With kMalformed `wr_id` is set, and nothing else.
  [[nodiscard]] ReadResult NextSend(WrScratch& scratch, device::SendWr& wr) noexcept;
  // Of the WR that NextSend() read last; 0 is none. SendWr::ah is for the caller to fill.
  uint32_t ah_handle() const noexcept { return ah_handle_; }
  [[nodiscard]] ReadResult NextRecv(WrScratch& scratch, device::RecvWr& wr) noexcept;

  // The receive that NextRecv() read last, whatever it was, comes again with the next call.
  void PutBackRecv() noexcept { head_ -= last_recv_slots_; }

  // Tells the client how far the reader has come; once per batch.
  void PublishHead() noexcept;

  // Skips everything that was posted up to now, and starts anew if the ring was corrupt: for when
  // the QP enters RESET.
  void Forget() noexcept;

  // Slots that Refresh() saw and that are not read.
  uint32_t unread_slots() const noexcept { return seen_tail_ - head_; }

 private:
  std::byte* SlotAt(uint32_t index) const noexcept {
    return slots_ + size_t{index & mask_} * shm::kSlotBytes;
  }
  // Copies the head of the next WR into `copy` and checks that its slots are there.
  ReadResult CopyNext(shm::WorkSlot& copy) noexcept;
  void CopySges(uint32_t num_sge, WrScratch& scratch) const noexcept;
  device::InlineData InlinePieces(uint32_t bytes) const noexcept;

  shm::WorkQueueHeader* header_ = nullptr;
  std::byte* slots_ = nullptr;
  uint32_t mask_ = 0;
  uint32_t slot_count_ = 0;
  uint32_t head_ = 0;       // next slot to read
  uint32_t seen_tail_ = 0;  // `tail` as of Refresh()
  uint32_t ah_handle_ = 0;
  uint32_t last_recv_slots_ = 0;
  bool corrupt_ = false;
};

}  // namespace rdmad::engine
