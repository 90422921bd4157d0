// A UD queue pair that takes part in a multicast group.
//
// Two things make packets come: the device gives those of the group to the QP (ibv_attach_mcast),
// and the network, and the kernel's own IP stack, which rxe sits on, know that this host is in the
// group (IGMP, MLD). For the latter a socket that nobody reads is a member on the device's
// interface.
//
// Thread: control; the engine has nothing to do with it. Owner: the session.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsQp;

class VerbsMulticast final : public device::EngineObject, public HardwareObject {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsMulticast>> Attach(
      std::shared_ptr<OpenContext> context, const VerbsQp& qp, const IpAddress& group);
  ~VerbsMulticast() override;

  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
  void CloseHardware() noexcept override;

 private:
  VerbsMulticast(std::shared_ptr<OpenContext> context, ibv_qp* qp, const ibv_gid& group,
                 UniqueFd member);

  const std::shared_ptr<OpenContext> context_;
  ibv_qp* qp_;
  const ibv_gid group_;
  const UniqueFd member_;  // empty: no IP network
};

}  // namespace rdmad::verbs
