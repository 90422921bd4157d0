#include "tests/sim/windows.h"

#include "daemon/base/check.h"

namespace rdmad::sim {

namespace {

constexpr uint32_t kKeyBits = 0xff;  // that a bind chooses

}  // namespace

void Windows::Create(soft::Transport& transport, const soft::SoftPd& pd, uint32_t count,
                     TimeNs now) {
  if (!windows_.empty()) return;
  for (uint32_t i = 0; i < count; ++i) {
    auto mw = soft::SoftMw::Create(transport, pd);
    RD_CHECK(mw.ok());
    windows_.push_back({.mw = std::move(*mw)});
    windows_.back().mw->Activate(now);
  }
}

void Windows::Destroy(TimeNs now) {
  for (Window& window : windows_) window.mw->Deactivate(now);
  windows_.clear();
  grants_.clear();
}

bool Windows::CanBind(const Window& window) const {
  if (window.latest == kNoGrant) return true;
  const Grant& grant = grants_[window.latest];
  return grant.state == State::kDead || (grant.state == State::kEnding && grant.ended_here);
}

size_t Windows::PickWindow(bool bound, Random& random) const {
  if (windows_.empty()) return SIZE_MAX;
  const size_t start = random.Below(windows_.size());
  for (size_t i = 0; i < windows_.size(); ++i) {
    const size_t index = (start + i) % windows_.size();
    const Window& window = windows_[index];
    if (!bound && CanBind(window)) return index;
    if (bound && window.latest != kNoGrant && grants_[window.latest].state == State::kLive) {
      return index;
    }
  }
  return SIZE_MAX;
}

size_t Windows::Add(size_t index, Piece range, uint32_t access) {
  Window& window = windows_[index];
  if (window.binds == kKeyBits) return kNoGrant;
  const uint32_t first = window.mw->rkey();
  const uint32_t key = (first & ~kKeyBits) | ((first + ++window.binds) & kKeyBits);
  window.latest = grants_.size();
  grants_.push_back({.window = index, .key = key, .range = range, .access = access});
  return window.latest;
}

void Windows::Contest(size_t window) {
  Grant& grant = grants_[windows_[window].latest];
  grant.state = State::kEnding;
  grant.contested = true;
}

// As if it had not been added; its key stays used.
void Windows::RemoveLast() {
  Window& window = windows_[grants_.back().window];
  grants_.pop_back();
  window.latest = kNoGrant;
  for (size_t i = 0; i < grants_.size(); ++i) {
    if (&windows_[grants_[i].window] == &window) window.latest = i;
  }
}

size_t Windows::Pick(State state, Random& random) const {
  if (grants_.empty()) return kNoGrant;
  const size_t start = random.Below(grants_.size());
  for (size_t i = 0; i < grants_.size(); ++i) {
    const size_t index = (start + i) % grants_.size();
    if (grants_[index].state == state) return index;
  }
  return kNoGrant;
}

}  // namespace rdmad::sim
