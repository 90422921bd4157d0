// What the sessions of one user together may hold, and hold now: one user's many sessions shall not
// take what the devices have for all.
//
// Root and the daemon's own user are counted and not bounded: they run the host.
//
// Thread: control. Owner: SessionRegistry; it outlives the user's sessions.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "daemon/session/quota.h"

namespace rdmad::session {

// The defaults of [user_limits]. Of what the soft device has for all, a half of each kind of object
// (65,536) and a quarter of the keys (2^20) and of the requests under way (65,536).
constexpr SessionLimits DefaultUserLimits() {
  SessionLimits limits;
  limits.max_qps = 32768;
  limits.max_cqs = 32768;
  limits.max_pds = 32768;
  limits.max_regions = 262144;
  limits.max_pools = 32768;
  limits.max_pool_bytes = 0;  // half of what the pools of all sessions may take
  limits.max_region_bytes = uint64_t{256} << 30;
  limits.max_cm_ids = 65536;
  limits.max_pending_requests = 16384;
  limits.max_channels = 32768;
  limits.max_arena_bytes = uint64_t{8} << 30;
  limits.max_srqs = 32768;
  limits.max_ahs = 32768;
  limits.max_mws = 65536;
  limits.max_multicasts = 1024;
  return limits;
}

class UserQuota {
 public:
  // Without limits nothing is refused.
  UserQuota(uid_t uid, const std::optional<SessionLimits>& limits) : uid_(uid), limits_(limits) {}
  UserQuota(const UserQuota&) = delete;
  UserQuota& operator=(const UserQuota&) = delete;
  ~UserQuota();

  // As Quota::Take(), for a Quota. Errors: ResourceExhausted, with the limit, the user and what to
  // do.
  absl::Status Take(const char* operation, Resource resource, uint64_t amount);
  void Return(Resource resource, uint64_t amount) noexcept;

  // What is held stays, also above a lower limit.
  void SetLimits(const std::optional<SessionLimits>& limits) { limits_ = limits; }

  [[nodiscard]] uid_t uid() const noexcept { return uid_; }
  [[nodiscard]] const std::optional<SessionLimits>& limits() const noexcept { return limits_; }
  [[nodiscard]] uint64_t in_use(Resource resource) const noexcept {
    return in_use_[static_cast<size_t>(resource)];
  }
  [[nodiscard]] uint64_t refusals() const noexcept { return refusals_; }

 private:
  const uid_t uid_;
  std::optional<SessionLimits> limits_;
  std::array<uint64_t, kResourceCount> in_use_{};
  uint64_t refusals_ = 0;
};

}  // namespace rdmad::session
