#include "client/sdk/lane.h"

#include <fcntl.h>

#include <utility>

#include "client/sdk/map_segment.h"
#include "client/sdk/status_macros.h"
#include "proto/shm/doorbell.h"
#include "proto/shm/engine_page.h"

namespace rdmad::sdk {

absl::StatusOr<std::unique_ptr<Lane>> Lane::Map(const std::string& operation, Parts parts) {
  SDK_ASSIGN_OR_RETURN(Mapping control, MapSegment<shm::ControlSegment>(
                                            parts.control_segment, parts.control_segment_bytes, PROT_READ | PROT_WRITE,
                                            shm::SegmentKind::kControl, operation + ": control segment"));
  SDK_ASSIGN_OR_RETURN(Mapping engine_page,
                       MapSegment<shm::EnginePage>(parts.engine_page, parts.engine_page_bytes, PROT_READ,
                                                   shm::SegmentKind::kEnginePage, operation + ": engine page"));
  return std::unique_ptr<Lane>(new Lane(std::move(control), std::move(engine_page), std::move(parts.wake_pipe)));
}

Lane::Lane(Mapping control, Mapping engine_page, UniqueFd wake_pipe) noexcept
    : control_(std::move(control)),
      engine_page_(std::move(engine_page)),
      wake_pipe_(std::move(wake_pipe)),
      ringer_(reinterpret_cast<shm::ControlSegment*>(control_.data()),
              reinterpret_cast<const shm::EnginePage*>(engine_page_.data()), wake_pipe_.get()) {
  // A full pipe means that the engine has been told often enough.
  ::fcntl(wake_pipe_.get(), F_SETFL, O_WRONLY | O_NONBLOCK);
}

}  // namespace rdmad::sdk
