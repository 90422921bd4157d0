// How much of a list is made at once. Lists can be long, and who asks for one must not keep the
// control thread from others' calls: a list is made in parts, and a part is over when its budget is
// spent.
//
// Thread: any.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rdmad::session {

class ListBudget {
 public:
  // Of one part: well under a millisecond.
  static constexpr uint32_t kMostEntries = 128;

  [[nodiscard]] bool spent() const noexcept { return left_ == 0; }
  // A place was looked at, whether something is there or not.
  void Look() noexcept { Spend(1); }
  // An entry was added to the list, of what has been looked at.
  void Entry() noexcept { Spend(kLooksPerEntry - 1); }

 private:
  static constexpr uint32_t kLooksPerEntry = 16;

  void Spend(uint32_t looks) noexcept { left_ -= std::min(looks, left_); }

  uint32_t left_ = kMostEntries * kLooksPerEntry;
};

}  // namespace rdmad::session
