// The names by which a client calls its objects: one table per session and kind.
//
// A handle is generation << 32 | kind << 24 | slot. It means something only in the table, and so in
// the session, that made it. The generation grows each time a slot is reused, so a handle that
// outlived its object is told apart from the slot's next owner; a slot whose generations are used
// up is never used again. The kind catches the handle of a QP where that of a CQ is wanted. A
// generation starts at 1: 0 is nobody's handle.
//
// Thread: control. Owner: Session.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/session/list_budget.h"

namespace rdmad::session {

using Handle = uint64_t;
inline constexpr Handle kNoHandle = 0;

enum class HandleKind : uint8_t {
  kNone = 0,
  kPool,
  kRegion,
  kPd,
  kCompletionChannel,
  kCq,
  kQp,
  kEventChannel,
  kCmId,
  kSrq,
  kAh,
  kMw,
  kMulticast,
};

// "pool", "region", ...; "nothing" for numbers that no kind has.
const char* HandleKindName(uint8_t kind) noexcept;

inline constexpr uint32_t kMaxHandleSlots = 1u << 24;

constexpr uint32_t HandleSlot(Handle handle) noexcept {
  return static_cast<uint32_t>(handle & (kMaxHandleSlots - 1));
}
constexpr uint8_t HandleKindOf(Handle handle) noexcept {
  return static_cast<uint8_t>(handle >> 24);
}
constexpr uint32_t HandleGeneration(Handle handle) noexcept {
  return static_cast<uint32_t>(handle >> 32);
}

// "qp 0x100000003", as it stands in error messages.
std::string HandleText(HandleKind kind, Handle handle);

template <typename T, HandleKind kKind>
class HandleTable {
 public:
  HandleTable() = default;
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // Takes the object over and names it. ResourceExhausted: no slot is left (2^24 objects, or that
  // many worn out).
  absl::StatusOr<Handle> Insert(std::unique_ptr<T> object) {
    RD_CHECK(object != nullptr);
    uint32_t index = 0;
    // The slot that has been free for longest: a stale handle stays recognisable for as long as
    // possible.
    if (!free_.empty()) {
      index = free_.front();
      free_.pop_front();
    } else if (slots_.size() < kMaxHandleSlots) {
      index = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      return absl::ResourceExhaustedError(absl::StrCat("no handle left for a ",
                                                       HandleKindName(static_cast<uint8_t>(kKind)),
                                                       ": limit=", kMaxHandleSlots));
    }
    Slot& slot = slots_[index];
    slot.object = std::move(object);
    ++count_;
    return MakeHandle(slot.generation, index);
  }

  // The object, or null if the handle names none (any more).
  [[nodiscard]] T* Find(Handle handle) const noexcept {
    if (HandleKindOf(handle) != static_cast<uint8_t>(kKind)) return nullptr;
    const uint32_t index = HandleSlot(handle);
    if (index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[index];
    return slot.generation == HandleGeneration(handle) ? slot.object.get() : nullptr;
  }

  // The object, or NotFound that says what is wrong with the handle: of another kind, stale, or
  // never given out.
  absl::StatusOr<T*> Get(Handle handle) const {
    T* object = Find(handle);
    if (object != nullptr) return object;
    const std::string text = HandleText(kKind, handle);
    if (handle == kNoHandle)
      return absl::NotFoundError(absl::StrCat(text, ": no handle was given"));
    if (HandleKindOf(handle) != static_cast<uint8_t>(kKind)) {
      return absl::NotFoundError(
          absl::StrCat(text, ": the handle is of a ", HandleKindName(HandleKindOf(handle))));
    }
    if (WasGivenOut(handle)) return absl::NotFoundError(absl::StrCat(text, ": destroyed before"));
    return absl::NotFoundError(absl::StrCat(text, ": no such handle in this session"));
  }

  // Takes the object out; its handle is stale from now on. Null if the handle names none.
  std::unique_ptr<T> Remove(Handle handle) {
    if (Find(handle) == nullptr) return nullptr;
    const uint32_t index = HandleSlot(handle);
    Slot& slot = slots_[index];
    std::unique_ptr<T> object = std::move(slot.object);
    --count_;
    if (slot.generation == UINT32_MAX) {
      slot.worn_out = true;
    } else {
      ++slot.generation;
      free_.push_back(index);
    }
    return object;
  }

  [[nodiscard]] uint32_t count() const noexcept { return count_; }

  // Calls visit(handle, object) for every object, by slot. The visit may remove objects, also
  // others than the one it is given, and insert none.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    for (uint32_t index = 0; index < slots_.size(); ++index) {
      const Slot& slot = slots_[index];
      if (slot.object != nullptr) visit(MakeHandle(slot.generation, index), *slot.object);
    }
  }

  // Goes on with a visit of all objects, at `*slot`, and notes there how far it has got. True: that
  // was all of them. An object that lives from the first part of such a visit to the last is visited
  // once, whatever comes and goes between the parts.
  template <typename Visit>
  bool ForEachFrom(uint32_t* slot, ListBudget* budget, Visit&& visit) const {
    for (; *slot < slots_.size(); ++*slot) {
      if (budget->spent()) return false;
      const Slot& at = slots_[*slot];
      budget->Look();
      if (at.object != nullptr) visit(MakeHandle(at.generation, *slot), *at.object);
    }
    return true;
  }

  // Test hook: the generation that the next object in `index` gets.
  void SetGenerationForTest(uint32_t index, uint32_t generation) {
    slots_.at(index).generation = generation;
  }

 private:
  struct Slot {
    std::unique_ptr<T> object;
    uint32_t generation = 1;
    bool worn_out = false;
  };

  // Whether a handle without an object had one once.
  [[nodiscard]] bool WasGivenOut(Handle handle) const noexcept {
    const uint32_t index = HandleSlot(handle);
    const uint32_t generation = HandleGeneration(handle);
    if (index >= slots_.size() || generation == 0) return false;
    const Slot& slot = slots_[index];
    return generation < slot.generation || (slot.worn_out && generation == slot.generation);
  }

  static constexpr Handle MakeHandle(uint32_t generation, uint32_t index) noexcept {
    return Handle{generation} << 32 | Handle{static_cast<uint8_t>(kKind)} << 24 | index;
  }

  std::vector<Slot> slots_;
  std::deque<uint32_t> free_;
  uint32_t count_ = 0;
};

}  // namespace rdmad::session
