// The multicast groups that a CM id has joined, or is joining, and its QP's place in them.
//
// The device's endpoint keeps the books of the protocol and reports a join; what the application is
// owed then is done here: the id's UD QP, if it has one, is attached by way of the host, and detached
// when the id leaves. Who joins to send only is not attached. Each join has a number of its own, by
// which the endpoint's events name it; what comes of one that was left meanwhile goes nowhere.
//
// Thread: control. Owner: its CmId.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/socket_address.h"
#include "daemon/cm/cm_id_host.h"
#include "daemon/device/connection_manager.h"

namespace rdmad::cm {

class GroupMemberships {
 public:
  // Takes what is for the application, its own cookie in it.
  using Report = std::function<void(const device::CmEvent&)>;

  // `host` and `endpoint` outlive it.
  GroupMemberships(CmIdHost* host, device::CmEndpoint* endpoint, Report report)
      : host_(host), endpoint_(endpoint), report_(std::move(report)) {}
  GroupMemberships(const GroupMemberships&) = delete;
  GroupMemberships& operator=(const GroupMemberships&) = delete;
  ~GroupMemberships() { *self_ = nullptr; }

  // As CmId's calls. `handle`: the id, as the host knows it.
  absl::Status Join(const SocketAddress& group, uint32_t join_flags, uint64_t cookie);
  absl::Status Leave(uint64_t handle, const SocketAddress& group);
  // The endpoint's events. `has_qp`: the id has one.
  void OnJoined(uint64_t handle, bool has_qp, device::CmEvent event);
  void OnError(uint64_t handle, device::CmEvent event);
  // The QP goes, and with it its places.
  void OnQpGone();

 private:
  struct Membership {
    SocketAddress group;
    uint64_t cookie;                    // the application's
    std::optional<IpAddress> attached;  // as what the QP is, or is being
    bool is_send_only = false;          // the QP is not to be attached
  };

  void OnAttached(uint64_t handle, const absl::Status& attached, device::CmEvent event);

  CmIdHost* const host_;
  device::CmEndpoint* const endpoint_;
  const Report report_;
  std::map<uint64_t, Membership> by_number_;
  uint64_t last_number_ = 0;
  // Answers that come after this has gone find it gone.
  const std::shared_ptr<GroupMemberships*> self_ = std::make_shared<GroupMemberships*>(this);
};

}  // namespace rdmad::cm
