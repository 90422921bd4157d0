// Which memory windows and bindable regions a context has, by key, and what each window is bound
// to.
//
// A WR names a window and a region by key; libibverbs wants its own objects. And a window that is
// bound holds its region and its QP: rxe refuses to let the region go, and waits for the QP in
// vain. So whoever of the two goes takes the windows bound to it along: they are freed in the
// hardware, and binding them again fails.
//
// Thread: engine. Owner: OpenContext.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <unordered_map>

namespace rdmad::verbs {

class VerbsMw;
class VerbsQp;

class WindowTable {
 public:
  void AddWindow(uint32_t rkey, VerbsMw& window) { windows_[rkey >> kTagBits] = &window; }
  void RemoveWindow(uint32_t rkey) { windows_.erase(rkey >> kTagBits); }
  // The low 8 bits are the application's. Null: no such window, or it is another engine's.
  [[nodiscard]] VerbsMw* FindWindow(uint32_t rkey) const noexcept;

  void AddRegion(uint32_t lkey, ibv_mr* region) { regions_[lkey] = {region, false}; }
  // Whether a bind has ever named it.
  bool RemoveRegion(uint32_t lkey);
  [[nodiscard]] ibv_mr* FindRegion(uint32_t lkey) const noexcept;
  // A bind to it, which is there, is posted.
  void NoteBind(uint32_t lkey) noexcept { regions_.find(lkey)->second.named = true; }

  void CloseBoundBy(const VerbsQp& qp) noexcept;
  void CloseBoundTo(uint32_t lkey) noexcept;

 private:
  static constexpr uint32_t kTagBits = 8;

  struct Region {
    ibv_mr* hw;
    bool named;  // by a bind
  };

  std::unordered_map<uint32_t, VerbsMw*> windows_;
  std::unordered_map<uint32_t, Region> regions_;
};

}  // namespace rdmad::verbs
