// Makes the events that the connection manager hands up.
#pragma once

#include "daemon/device/connection_manager.h"

namespace rdmad::soft {

// `status`: 0, a negative errno, or a reject reason of the wire.
[[nodiscard]] inline device::CmEvent MakeCmEvent(device::CmEventType type, int status = 0) {
  device::CmEvent event;
  event.type = type;
  event.status = status;
  return event;
}

}  // namespace rdmad::soft
