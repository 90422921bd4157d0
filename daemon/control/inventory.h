// What the daemon consists of, as main wires it up and the control room reports it.
//
// Thread: control. Owner: main.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/device/connection_manager.h"
#include "daemon/device/device.h"
#include "daemon/device/device_source.h"
#include "daemon/engine/engine_proxy.h"

namespace rdmad::control {

// A device that was wanted and is not there.
struct MissingDevice {
  std::string kind;  // "soft" or "verbs"
  std::string what;  // address, interface or name
  std::string why;   // one line, with what to do
};

// Counters of a kind of device that its devices share.
struct SharedCounters {
  std::string kind;
  std::function<std::vector<device::CounterValue>()> read;
};

// All of it outlives the Daemon.
struct Inventory {
  std::vector<engine::EngineProxy*> engines;  // at least one
  std::vector<device::Device*> devices;         // those that are there at the start
  std::vector<device::DeviceSource*> sources;  // of those that come and go
  std::vector<device::ConnectionManager*> managers;  // each once
  std::vector<device::EngineObject*>
      engine_objects;  // to activate before the first session, on engine 0
  std::vector<MissingDevice> missing;
  std::vector<SharedCounters> shared_counters;
};

}  // namespace rdmad::control
