// Reading positions in scatter-gather lists, and copying from one list to another.
//
// A list names memory by keys. A cursor yields it run by run as host memory, looking up the key for
// every run: a region that was revoked since the last packet stops the message. A remote range (va,
// rkey) is a list with one entry, so all of gathering, scattering and the local path are the same
// few lines.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "daemon/device/soft/mr_table.h"
#include "daemon/device/types.h"

namespace rdmad::soft {

struct SgeList {
  std::span<const device::Sge> sges;
  uint64_t pd_id = 0;
  uint32_t access = 0;         // what every key must grant
  bool host_pointers = false;  // inline data: `addr` is host memory and there is no key
  uint64_t qp_scope = 0;       // of a remote range: the QP whose windows may be meant
};

inline uint64_t TotalBytes(std::span<const device::Sge> sges) noexcept {
  uint64_t total = 0;
  for (const device::Sge& sge : sges) total += sge.length_bytes;
  return total;
}

class SgeCursor {
 public:
  // To byte `offset` of the list, which must not lie behind its end.
  void Seek(const SgeList& list, uint64_t offset) noexcept {
    index_ = 0;
    while (index_ < list.sges.size() && offset >= list.sges[index_].length_bytes) {
      offset -= list.sges[index_++].length_bytes;
    }
    offset_ = static_cast<uint32_t>(offset);
  }

  // The next run of at most `max_bytes` (> 0), and moves behind it. Empty if the list is at its end
  // or a key does not hold.
  std::span<std::byte> Next(const SgeList& list, const MrTable& mrs, uint64_t max_bytes) noexcept {
    while (index_ < list.sges.size() && offset_ == list.sges[index_].length_bytes) {
      ++index_;
      offset_ = 0;
    }
    if (index_ >= list.sges.size()) return {};
    const device::Sge& sge = list.sges[index_];
    const uint64_t bytes = std::min<uint64_t>(max_bytes, sge.length_bytes - offset_);
    std::byte* const host = list.host_pointers
                                ? reinterpret_cast<std::byte*>(sge.addr) + offset_
                                : mrs.Translate(sge.lkey, list.pd_id, sge.addr + offset_, bytes,
                                                list.access, list.qp_scope);
    if (host == nullptr) return {};
    offset_ += static_cast<uint32_t>(bytes);
    return {host, bytes};
  }

 private:
  uint32_t index_ = 0;
  uint32_t offset_ = 0;  // in sges[index_]
};

// Copies so that whoever polls the last byte sees all the others once it has changed. Areas may
// overlap.
inline void CopyLastByteLast(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  if (bytes == 0) return;
  const std::byte last = from[bytes - 1];  // before the target, which may overlap, is written
  std::memmove(to, from, bytes - 1);
  // Pairs with the poller's acquire; the poller is another process, or hardware as far as C++ is
  // concerned.
  std::atomic_thread_fence(std::memory_order_release);
  reinterpret_cast<volatile std::byte*>(to)[bytes - 1] = last;
}

enum class CopyResult : uint8_t { kOk, kSourceError, kTargetError };

// Copies `bytes` from one list to the other; the last byte last if `ends_message`. On an error what
// was copied before stays copied.
inline CopyResult CopyBetween(const SgeList& source, SgeCursor& source_cursor,
                              const SgeList& target, SgeCursor& target_cursor, uint64_t bytes,
                              bool ends_message, const MrTable& mrs) noexcept {
  std::span<std::byte> from;
  while (bytes > 0) {
    if (from.empty()) from = source_cursor.Next(source, mrs, bytes);
    if (from.empty()) return CopyResult::kSourceError;
    const std::span<std::byte> to = target_cursor.Next(target, mrs, from.size());
    if (to.empty()) return CopyResult::kTargetError;
    bytes -= to.size();
    if (bytes == 0 && ends_message) {
      CopyLastByteLast(to.data(), from.data(), to.size());
    } else {
      std::memmove(to.data(), from.data(), to.size());
    }
    from = from.subspan(to.size());
  }
  return CopyResult::kOk;
}

// Whether every entry of the list holds. Empty entries name nothing and need no key.
inline bool IsAccessible(const SgeList& list, const MrTable& mrs) noexcept {
  if (list.host_pointers) return true;
  return std::all_of(list.sges.begin(), list.sges.end(), [&](const device::Sge& sge) {
    return sge.length_bytes == 0 ||
           mrs.Translate(sge.lkey, list.pd_id, sge.addr, sge.length_bytes, list.access) != nullptr;
  });
}

}  // namespace rdmad::soft
