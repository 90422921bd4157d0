// Something that WRs are taken from: a QP's or SRQ's rings. One that has work stands in the
// engine's list of active sources; all others cost nothing.
#pragma once

#include <cstdint>

#include "daemon/device/types.h"
#include "daemon/engine/intrusive_list.h"

namespace rdmad::engine {

struct ActiveTag;

struct DrainResult {
  uint32_t wrs = 0;   // taken
  bool more = false;  // the budget ended before the work did
};

// Thread: engine.
class WorkSource : public ListHook<ActiveTag> {
 public:
  // Takes up to `budget` WRs from each of its rings.
  virtual DrainResult Drain(uint32_t budget, device::TimeNs now) noexcept = 0;

 protected:
  ~WorkSource() = default;
};

using ActiveList = IntrusiveList<WorkSource, ActiveTag>;

}  // namespace rdmad::engine
