// What a CM id needs from the session that owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/device/device.h"

namespace rdmad::cm {

class CmId;

// Thread: control. Owner: the session; it outlives its ids.
class CmIdHost {
 public:
  virtual ~CmIdHost() = default;

  // A connection request has come in on `listener`: takes the new id, returns the handle it got. An
  // error (over quota, session closing) destroys `id`, which rejects the request; the application
  // hears nothing. Must not destroy `listener`.
  virtual absl::StatusOr<uint64_t> AdoptId(std::unique_ptr<CmId> id, CmId& listener) = 0;

  // The id that AdoptId() took under this handle will not be reported after all, because its
  // listener goes first: destroy it.
  virtual void DiscardId(uint64_t handle) = 0;

  // The number by which the client knows the device; shm::kNoDevice for null and for one that this
  // session may not use.
  virtual uint32_t DeviceIndex(const device::Device* device) const = 0;

  // The id `handle` has joined a group: from now on its QP gets what is sent there. `done`, at once
  // or later, also if the id is gone by then; Cancelled: DetachQp(), or the QP went.
  // Errors: InvalidArgument (not a UD QP), ResourceExhausted (a quota), those of the device.
  virtual void AttachQp(uint64_t handle, const IpAddress& group,
                        std::function<void(absl::Status)> done) = 0;
  // Whatever has become of that since. An id that goes, or lets go of its QP, need not say so.
  virtual void DetachQp(uint64_t handle, const IpAddress& group) = 0;
};

}  // namespace rdmad::cm
