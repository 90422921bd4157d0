// The keys of the memory regions and windows of all soft devices: one space for all engines, since
// a region may be used by QPs of any.
//
// A key is index << 8 | generation. An index that is used again gets the next generation, so a key
// from before fails. The engines' tables (mr_table.h) are found by the index.
//
// A window has one word here, which all engines see: where it is bound now, and the generation of
// its last key. Who binds takes it, who frees gives it back; so a window is bound once, whichever
// engines try, and its keys differ also from those that another engine bound it under.
//
// Thread: control; the windows' words any. Owner: shared by the engines' tables.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>

#include "absl/status/statusor.h"

namespace rdmad::soft {

class MrKeys {
 public:
  // Several times what one session may have by its default quota; memory is taken as they are used.
  static constexpr uint32_t kDefaultCount = 1u << 20;
  static constexpr int kGenerationBits = 8;

  // How many regions and windows there may be at a time.
  explicit MrKeys(uint32_t max_regions = kDefaultCount);

  static constexpr uint32_t IndexOf(uint32_t key) noexcept { return key >> kGenerationBits; }
  // Indices, 0 included, which is never handed out.
  [[nodiscard]] uint32_t capacity() const noexcept { return capacity_; }

  // A key that is not valid for anything until a table has it.
  // Errors: ResourceExhausted (none is left; says the limit).
  absl::StatusOr<uint32_t> Reserve();
  // After all tables have removed it. The index goes to the end of the free list.
  void Release(uint32_t key);

  // `key` is a window from now on, bound nowhere. Before any table has it.
  void MakeWindow(uint32_t key) noexcept;
  // The window's key by now, for Release(). After all tables have removed it.
  [[nodiscard]] uint32_t LastKeyOf(uint32_t first_key) const noexcept;

  // Engine threads. Of a window that the caller's table has:
  // makes `key` its key, bound on `engine`. False, and nothing has changed, if it is bound already,
  // on whichever engine, or has this key.
  [[nodiscard]] bool Bind(uint32_t key, uint32_t engine) noexcept;
  // The same, but it stays free, and may have had this key.
  [[nodiscard]] bool Rekey(uint32_t key) noexcept;
  // The caller's engine has it bound: it is free now, and `key` its key.
  void Free(uint32_t key) noexcept;

 private:
  struct Deallocate {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  static constexpr uint32_t kGenerationMask = (1u << kGenerationBits) - 1;

  // Low bits: the generation; above: 1 + the engine, 0 if it is bound nowhere.
  [[nodiscard]] std::atomic_ref<uint32_t> WordOf(uint32_t key) const noexcept {
    return std::atomic_ref<uint32_t>(windows_[IndexOf(key)]);
  }

  const uint32_t capacity_;
  std::unique_ptr<uint32_t[], Deallocate> windows_;  // zero pages until used
  // A released index rests until so many others are released, so that its 256 keys last long.
  static constexpr size_t kRestingKeys = 1024;
  std::deque<uint32_t> released_;  // in the order of their release
  uint32_t next_index_ = 1;
};

}  // namespace rdmad::soft
