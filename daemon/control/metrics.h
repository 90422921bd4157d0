// The daemon's metrics, read at scrape time from where they are counted.
//
// Names follow Prometheus' conventions: rdmad_ in front, base units, _total behind counters. Labels
// are bounded: devices and engines are few; of the sessions the oldest kMaxSessionsShown stand by
// themselves and the others add up under session="others".
//
// Thread: control. Owner: Daemon.
#pragma once

#include <prometheus/collectable.h>

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/control/attach_server.h"
#include "daemon/control/inventory.h"
#include "daemon/control/rpc_door.h"
#include "daemon/control/session_registry.h"
#include "daemon/session/device_list.h"

namespace rdmad::control {

inline constexpr size_t kMaxSessionsShown = 100;
inline constexpr size_t kMaxUsersShown = 50;  // the lowest uids

// Where numbers are read from; all of it outlives the Metrics. `attach` and `rpc` may be null.
struct MetricsSources {
  const Inventory* inventory = nullptr;
  const session::DeviceList* devices = nullptr;
  const SessionRegistry* registry = nullptr;
  const AttachServer* attach = nullptr;
  const RpcDoor* rpc = nullptr;
};

class Metrics final : public prometheus::Collectable {
 public:
  explicit Metrics(const MetricsSources& sources) : sources_(sources) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

  // What /metrics answers: Prometheus' text format.
  [[nodiscard]] std::string Text() const;

 private:
  const MetricsSources sources_;
};

}  // namespace rdmad::control
