// What operators ask (admin.proto). A session sees its own objects; the daemon's user and root see
// everything.
//
// Lists are made a page at a time, and a page in a turn of the event loop for itself: who lists much,
// or all the time, from however many connections, has others wait for one page at most.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/control/call_table.h"
#include "daemon/control/inventory.h"
#include "daemon/control/list_cursor.h"
#include "daemon/control/session_registry.h"
#include "daemon/control/turn_queue.h"
#include "daemon/session/device_list.h"
#include "daemon/session/list_budget.h"
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
        SessionRegistry* registry, TurnQueue* turns);

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
  // Whose sessions a caller may see: its user's, or all.
  struct View {
    explicit View(const Caller& caller)
        : uid(caller.session->identity().uid), all(caller.privileged) {}
    [[nodiscard]] bool Shows(uid_t of) const { return all || of == uid; }
    [[nodiscard]] bool Shows(const session::Session& session) const {
      return Shows(session.identity().uid);
    }

    uid_t uid;
    bool all;
  };
  // Adds what there is of a session from `*slot` on; false: the budget was spent before its end.
  using AddPart =
      std::function<bool(session::Session& session, uint32_t* slot, session::ListBudget* budget)>;

  void ForEachVisible(const Caller& caller,
                      const std::function<void(session::Session&)>& visit) const;
  // Makes the page that the request names, in a turn of its own, and then calls `done`.
  template <typename Request, typename Reply>
  void MakePage(const Caller& caller, const Request& request, Reply* reply, AddPart add, Done done);
  // Where the next page begins, if this one was not the last.
  std::optional<ListCursor> AddPage(const View& view, const ListCursor& from,
                                    const AddPart& add) const;
  // Of all devices.
  [[nodiscard]] std::vector<IpAddress> OwnAddresses() const;
  void AddDevices(const Caller& caller,
                  google::protobuf::RepeatedPtrField<v1::DeviceStatus>* out) const;

  AdminFacts facts_;
  const Inventory* const inventory_;
  const session::DeviceList* const devices_;
  SessionRegistry* const registry_;
  TurnQueue* const turns_;
};

// Adds `counts` to `total`, field by field.
void AddCounts(const v1::ObjectCounts& counts, v1::ObjectCounts* total);

}  // namespace rdmad::control
