// What the daemon consists of, as main wires it up and the control room reports it.
//
// Thread: control. Owner: main.
#pragma once

#include <functional>
#include <string>
#include <utility>
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
  std::vector<engine::EngineProxy*> engines;  // at least one; each at its index
  std::vector<device::Device*> devices;         // those that are there at the start
  std::vector<device::DeviceSource*> sources;  // of those that come and go
  std::vector<device::ConnectionManager*> managers;  // each once
  // What the devices have on the engines now: to activate before the first session and before
  // sources are polled, and to deactivate at the end. What comes in between is the sources' business.
  std::function<std::vector<device::EnginePart>()> engine_objects = [] {
    return std::vector<device::EnginePart>();
  };
  // Of each kind, now.
  std::vector<std::function<std::vector<MissingDevice>()>> missing;
  std::vector<SharedCounters> shared_counters;

  [[nodiscard]] std::vector<MissingDevice> Missing() const {
    std::vector<MissingDevice> all;
    for (const auto& of_a_kind : missing) {
      for (MissingDevice& one : of_a_kind()) all.push_back(std::move(one));
    }
    return all;
  }
};

}  // namespace rdmad::control
