// What operators ask (admin.proto). A session sees its own objects; the daemon's user and root see
// everything.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/control/call_table.h"
#include "daemon/control/inventory.h"
#include "daemon/control/session_registry.h"
#include "daemon/session/device_list.h"
#include "proto/rdmad/v1/admin.pb.h"

namespace rdmad::control {

// What does not change while the daemon runs.
struct AdminFacts {
  std::string run_dir;
  std::string config_file;      // empty: built-in defaults
  std::string metrics_address;  // empty: off
  int64_t started_at_ns = 0;
};

class Admin {
 public:
  using Done = session::Session::Done;

  // All pointers outlive it.
  Admin(AdminFacts facts, const Inventory* inventory, const session::DeviceList* devices,
        SessionRegistry* registry);

  void GetStatus(const Caller& caller, const v1::GetStatusRequest& request,
                 v1::GetStatusReply* reply, Done done);
  void ListDevices(const Caller& caller, const v1::ListDevicesRequest& request,
                   v1::ListDevicesReply* reply, Done done);
  void ListSessions(const Caller& caller, const v1::ListSessionsRequest& request,
                    v1::ListSessionsReply* reply, Done done);
  void ListConnections(const Caller& caller, const v1::ListConnectionsRequest& request,
                       v1::ListConnectionsReply* reply, Done done);
  void ListPools(const Caller& caller, const v1::ListPoolsRequest& request,
                 v1::ListPoolsReply* reply, Done done);

  void SetMetricsAddress(const std::string& address) { facts_.metrics_address = address; }

 private:
  // The sessions of the caller's user, or all.
  void ForEachVisible(const Caller& caller,
                      const std::function<void(session::Session&)>& visit) const;
  void AddDevices(const Caller& caller,
                  google::protobuf::RepeatedPtrField<v1::DeviceStatus>* out) const;

  AdminFacts facts_;
  const Inventory* const inventory_;
  const session::DeviceList* const devices_;
  SessionRegistry* const registry_;
};

// Adds `counts` to `total`, field by field.
void AddCounts(const v1::ObjectCounts& counts, v1::ObjectCounts* total);

}  // namespace rdmad::control
