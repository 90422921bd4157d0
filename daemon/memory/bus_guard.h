// Keeps the daemon alive when memory that it shares with a client has gone.
//
// Seals keep a client from truncating a segment, but whoever can write to a memfd can also punch
// holes into it, and a hole in huge pages that cannot be filled again is a SIGBUS for the next one
// who touches it: the engine, in the middle of a copy. The guard is a SIGBUS handler that puts a
// private page of zeros in the place of the missing one, so that the copy goes on; client and
// daemon then see different bytes there, which harms that client only. A SIGBUS outside of the
// guarded ranges ends the process as ever.
#pragma once

#include <cstdint>

namespace rdmad::memory {

// Takes over SIGBUS for the process. Once, from main(). False, with errno, if the kernel refuses.
bool InstallBusGuard();

// How many pages were replaced since the start. Any thread.
uint64_t BusGuardReplacedPages() noexcept;

// A mapped range that the handler may patch. Segment has one; so must have whoever maps a foreign
// segment. Thread: any. The range is a number of whole pages of `page_bytes` at an aligned address.
class BusGuardedRange {
 public:
  BusGuardedRange() = default;
  BusGuardedRange(void* addr, uint64_t size_bytes, uint64_t page_bytes) noexcept;
  BusGuardedRange(BusGuardedRange&& other) noexcept;
  BusGuardedRange& operator=(BusGuardedRange&& other) noexcept;
  BusGuardedRange(const BusGuardedRange&) = delete;
  BusGuardedRange& operator=(const BusGuardedRange&) = delete;
  // To be called (or destroyed) before the range is unmapped.
  void Reset() noexcept;
  ~BusGuardedRange() { Reset(); }

  // False if the table of ranges was full: the range is not guarded.
  bool guarded() const noexcept { return index_ >= 0; }

 private:
  int index_ = -1;
};

}  // namespace rdmad::memory
