// A session at one of the daemon's engines: what the two share, and what of devices lives there.
//
// An application names engines by completion vectors. Vector 0 is the engine that the session was
// given; its lane is there from the start. Others are opened by the first CQ or SRQ that names
// them, and stay until the session ends.
//
// CQs, QPs and SRQs live in one lane. What QPs of all lanes name (regions, windows, address
// handles, completion channels) is known to the first lane and, by parts, to every other one that
// has their device open.
//
// Thread: control. Owner: Session.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "daemon/device/device.h"
#include "daemon/engine/engine_proxy.h"
#include "daemon/memory/segment.h"
#include "daemon/session/event_router.h"

namespace rdmad::session {

struct Lane {
  uint32_t comp_vector = 0;
  engine::EngineProxy* engine = nullptr;
  memory::Segment control_segment;
  UniqueFd wake_pipe;      // the client's end, until it has that
  bool delivered = false;  // the client has its descriptors
  EventToken token;
  std::unique_ptr<engine::SessionPort> port;
  std::vector<uint32_t> free_doorbells;
  uint32_t next_doorbell = 0;
  std::map<uint32_t, std::unique_ptr<device::Context>> contexts;  // by device index
};

// An object on the engine of a lane.
struct LaneObject {
  Lane* lane;
  device::EngineObject* object;
};

// What lanes other than the first have of an object: to be activated in this order, and deactivated
// in the opposite one.
class LaneParts {
 public:
  // `part` may be null: then there is none.
  void Add(Lane& lane, std::unique_ptr<device::EngineObject> part) {
    if (part == nullptr) return;
    objects_.push_back({&lane, part.get()});
    parts_.push_back(std::move(part));
  }
  [[nodiscard]] const std::vector<LaneObject>& objects() const noexcept { return objects_; }

 private:
  std::vector<LaneObject> objects_;
  std::vector<std::unique_ptr<device::EngineObject>> parts_;
};

}  // namespace rdmad::session
