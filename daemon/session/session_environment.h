// What a session is made from and what it hands out at its beginning.
//
// Thread: control.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/device.h"
#include "daemon/engine/engine_proxy.h"
#include "daemon/session/device_list.h"
#include "daemon/session/event_router.h"
#include "daemon/session/quota.h"
#include "daemon/session/session_host.h"

namespace rdmad::session {

// What the daemon lends to a session; all of it outlives the session.
struct SessionEnvironment {
  // By completion vector, each once. The first is the one that serves whoever asks for none.
  std::vector<engine::EngineProxy*> engines;
  const DeviceList* devices = nullptr;
  device::ConnectionManager* connection_manager = nullptr;  // null: no device can connect
  EventRouter* router = nullptr;
  HostBudget* pool_budget = nullptr;
  UserQuota* user_quota = nullptr;  // null: nothing is counted for the user
  SessionHost* host = nullptr;
  std::function<device::TimeNs()> clock;
};

struct SessionIdentity {
  uint64_t id = 0;   // never reused
  std::string name;  // printable
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  bool privileged = false;  // policy.h
};

// What the attach reply carries, in the order of attach.proto. Descriptors that are not owned stay
// the session's or the engine's.
struct AttachGift {
  int control_segment = -1;
  int engine_page = -1;
  uint32_t engine_index = 0;
  UniqueFd wake_pipe;      // write end
  UniqueFd async_channel;  // read end
  uint64_t control_segment_bytes = 0;
  uint64_t engine_page_bytes = 0;
};

}  // namespace rdmad::session
