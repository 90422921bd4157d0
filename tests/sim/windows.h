// The memory windows of one end, and what the model knows of each of their bindings (*grants*).
//
//   binding --(completion)--> live --(invalidation posted, here or by the peer)--> ending --> dead
//
// A live grant must work, a dead one must be refused, for good: each bind has a key of its own. In
// between either may be. If two ask for a grant's end, or somebody still uses it, it is
// *contested*: then who loses has an excuse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/device/soft/soft_mw.h"
#include "tests/sim/arena.h"
#include "tests/sim/random.h"
#include "tests/sim/records.h"

namespace rdmad::sim {

class Windows {
 public:
  enum class State : uint8_t { kBinding, kLive, kEnding, kDead };
  struct Grant {
    size_t window;
    uint32_t key;
    Piece range;      // in the owner's arena
    uint32_t access;  // remote rights
    State state = State::kBinding;
    bool bound = false;       // the bind is done
    bool used = false;        // by an operation that succeeded
    bool ended_here = false;  // by the owner's own invalidation
    bool contested = false;
  };

  // As many as `count`, if there are none.
  void Create(soft::Transport& transport, const soft::SoftPd& pd, uint32_t count, TimeNs now);
  // With all their grants.
  void Destroy(TimeNs now);

  Grant& operator[](size_t grant) { return grants_[grant]; }
  const Grant& operator[](size_t grant) const { return grants_[grant]; }
  size_t size() const { return grants_.size(); }
  // A window that can be bound next, behind all that the owner has posted; or, with `bound`, one
  // that cannot. SIZE_MAX: none.
  size_t PickWindow(bool bound, Random& random) const;
  // A new grant; kNoGrant if the window has no key left in this life.
  size_t Add(size_t window, Piece range, uint32_t access);
  void RemoveLast();
  // What the window is bound to is left alone from now on.
  void Contest(size_t window);
  // Some grant in that state; kNoGrant: none.
  size_t Pick(State state, Random& random) const;

 private:
  struct Window {
    std::unique_ptr<soft::SoftMw> mw;
    uint32_t binds = 0;
    size_t latest = kNoGrant;
  };
  bool CanBind(const Window& window) const;

  std::vector<Window> windows_;
  std::vector<Grant> grants_;
};

}  // namespace rdmad::sim
