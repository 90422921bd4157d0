// The memory regions and windows of one engine: from a key to bytes, with every check that verbs
// asks for.
//
// Keys are the same on all engines (mr_keys.h): the index in one finds the entry, the generation
// must be the entry's. lkey and rkey of a region are the same number; which rights a use needs is
// an argument. Nobody keeps what Translate() returns beyond the call he makes it for: between two
// engine turns a region may be gone.
//
// A window (type 2B) is an entry too: bound, it stands for part of a region and serves one QP.
// Whose an entry is, is its *scope*: the PD of a region, the QP of a bound window. The two kinds of
// numbers differ, so a region costs one comparison, and a window is no lkey. Each use of a window
// looks whether the region below is still there, hence a region can go without knowing its windows.
// A window is in the table of every engine that its owner uses, and bound in one: MrKeys has a word
// that says so. Source: IBTA vol. 1, Memory Management, "Memory Windows", type 2B.
//
// Thread: engine, but for construction and keys(). mr_table_windows.cc has the windows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "daemon/device/soft/mr_keys.h"

namespace rdmad::soft {

// What a key stands for. All zero: nothing.
struct MrEntry {
  std::byte* host_addr;
  uint64_t length_bytes;
  uint64_t iova;
  uint64_t pd_id;
  uint32_t access;  // device::Access bits
  uint32_t key;     // 0: nothing

  // The table's own.
  uint64_t scope = 0;         // see above; kNoScope: a window that is not bound
  uint64_t serial = 0;        // of a region: its own, never used again; of a window: the region's
  uint32_t region_index = 0;  // of a bound window
  bool is_window = false;
};
static_assert(sizeof(MrEntry) == 64);

// Of QPs; differs from every PD's id.
inline constexpr uint64_t kQpScopeBit = uint64_t{1} << 63;
inline constexpr uint64_t kNoScope = UINT64_MAX;

// What a bind WR asks for.
struct WindowBind {
  uint32_t key = 0;   // the window's from now on: other low 8 bits than it has
  uint32_t lkey = 0;  // of the region; not looked at if length_bytes is 0
  uint64_t iova = 0;
  uint64_t length_bytes = 0;  // 0: bound to nothing
  uint64_t access = 0;        // remote rights; wider than any, since it comes from a client
};

class MrTable {
 public:
  // With keys of its own.
  explicit MrTable(uint32_t max_regions = MrKeys::kDefaultCount);
  // There are several engines, and this is the table of `engine`. Before it is used; `keys` are as
  // many as it has itself.
  void ShareKeys(std::shared_ptr<MrKeys> keys, uint32_t engine);

  // Thread: control.
  MrKeys& keys() noexcept { return *keys_; }
  uint32_t capacity() const noexcept { return capacity_; }

  // Engine thread from here on.
  void Insert(const MrEntry& entry) noexcept;
  void Remove(uint32_t key) noexcept;

  // Where [iova, iova + length_bytes) lies, if `key` is a region of `pd_id`, or a window bound to
  // the QP whose scope is `qp_scope`, that covers it and has all bits of `access`; else null. A
  // length of 0 is checked like any other; callers for whom zero-length needs no key must not ask.
  [[nodiscard]] std::byte* Translate(uint32_t key, uint64_t pd_id, uint64_t iova,
                                     uint64_t length_bytes, uint32_t access,
                                     uint64_t qp_scope = 0) const noexcept {
    const uint32_t index = MrKeys::IndexOf(key);
    if (index >= capacity_) return nullptr;
    const MrEntry& entry = entries_[index];
    if (entry.key != key || key == 0) return nullptr;
    if (entry.scope != pd_id && (entry.scope != qp_scope || !RegionLives(entry))) return nullptr;
    if ((entry.access & access) != access) return nullptr;
    // No sum that could wrap: the offset first, then what is left behind it.
    const uint64_t offset = iova - entry.iova;
    if (iova < entry.iova || offset > entry.length_bytes ||
        length_bytes > entry.length_bytes - offset) {
      return nullptr;
    }
    return entry.host_addr + offset;
  }

  // A window that is bound to nothing.
  void InsertWindow(uint32_t key, uint64_t pd_id) noexcept;
  void RemoveWindow(uint32_t first_key) noexcept;
  // Binds a window of `pd_id` that is free to part of a region of the same PD. False, and nothing
  // has changed, if the window is bound (on any engine), of another PD or keeps its key; if the
  // region has no kAccessMwBind, is too small, or has no local write where the window is to be
  // written; if the rights are no remote ones. Length 0 frees a window that is bound to `qp_scope`,
  // as ConnectX has it; the specification knows only invalidation for that.
  [[nodiscard]] bool BindWindow(const WindowBind& bind, uint64_t pd_id, uint64_t qp_scope) noexcept;
  // Whether `key` is a window that is bound to the QP. A region is nothing to invalidate: none of
  // ours was registered by a WR.
  [[nodiscard]] bool MayInvalidate(uint32_t key, uint64_t qp_scope) const noexcept;
  // Frees the window; false if MayInvalidate() says no.
  [[nodiscard]] bool InvalidateWindow(uint32_t key, uint64_t qp_scope) noexcept;

 private:
  struct Release {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };

  [[nodiscard]] bool RegionLives(const MrEntry& window) const noexcept {
    return window.is_window && entries_[window.region_index].serial == window.serial;
  }
  MrEntry* FindWindow(uint32_t any_key) noexcept;
  static void MakeFree(MrEntry& window) noexcept;

  std::shared_ptr<MrKeys> keys_;
  uint32_t engine_ = 0;
  const uint32_t capacity_;                      // indices, 0 included, which is never handed out
  std::unique_ptr<MrEntry[], Release> entries_;  // zero pages until used
  uint64_t last_serial_ = 0;
};

}  // namespace rdmad::soft
