#include "daemon/session/quota.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/session/user_quota.h"

namespace rdmad::session {

uint64_t LimitOf(const SessionLimits& limits, Resource resource) noexcept {
  switch (resource) {
    case Resource::kQps:
      return limits.max_qps;
    case Resource::kCqs:
      return limits.max_cqs;
    case Resource::kPds:
      return limits.max_pds;
    case Resource::kRegions:
      return limits.max_regions;
    case Resource::kPools:
      return limits.max_pools;
    case Resource::kPoolBytes:
      return limits.max_pool_bytes;
    case Resource::kRegionBytes:
      return limits.max_region_bytes;
    case Resource::kCmIds:
      return limits.max_cm_ids;
    case Resource::kPendingRequests:
      return limits.max_pending_requests;
    case Resource::kChannels:
      return limits.max_channels;
    case Resource::kSrqs:
      return limits.max_srqs;
    case Resource::kAhs:
      return limits.max_ahs;
    case Resource::kMws:
      return limits.max_mws;
    case Resource::kMulticasts:
      return limits.max_multicasts;
    case Resource::kArenaBytes:
      return limits.max_arena_bytes;
  }
  return 0;
}

const char* LimitName(Resource resource) noexcept {
  switch (resource) {
    case Resource::kQps:
      return "max_qps";
    case Resource::kCqs:
      return "max_cqs";
    case Resource::kPds:
      return "max_pds";
    case Resource::kRegions:
      return "max_regions";
    case Resource::kPools:
      return "max_pools";
    case Resource::kPoolBytes:
      return "max_pool_bytes";
    case Resource::kRegionBytes:
      return "max_region_bytes";
    case Resource::kCmIds:
      return "max_cm_ids";
    case Resource::kPendingRequests:
      return "max_pending_requests";
    case Resource::kChannels:
      return "max_channels";
    case Resource::kSrqs:
      return "max_srqs";
    case Resource::kAhs:
      return "max_ahs";
    case Resource::kMws:
      return "max_mws";
    case Resource::kMulticasts:
      return "max_multicasts";
    case Resource::kArenaBytes:
      return "max_arena_bytes";
  }
  return "?";
}

Charge& Charge::operator=(Charge&& other) noexcept {
  if (this != &other) {
    if (quota_ != nullptr) quota_->Return(resource_, amount_);
    quota_ = std::exchange(other.quota_, nullptr);
    resource_ = other.resource_;
    amount_ = other.amount_;
  }
  return *this;
}

Charge::~Charge() {
  if (quota_ != nullptr) quota_->Return(resource_, amount_);
}

Quota::Quota(const SessionLimits& limits, UserQuota* user) : limits_(limits), user_(user) {}

Quota::~Quota() {
  for (uint64_t in_use : in_use_) RD_CHECK(in_use == 0, "a charge outlived its quota");
}

absl::StatusOr<Charge> Quota::Take(const char* operation, Resource resource, uint64_t amount) {
  const uint64_t limit = LimitOf(limits_, resource);
  uint64_t& in_use = in_use_[static_cast<size_t>(resource)];
  // Subtracting cannot wrap: in_use never passes the limit.
  if (amount > limit - in_use) {
    ++refusals_;
    return absl::ResourceExhaustedError(
        absl::StrCat(operation, ": over the session's quota: limit=", LimitName(resource),
                     " value=", limit, " in_use=", in_use, " asked=", amount));
  }
  if (user_ != nullptr) {
    if (absl::Status within = user_->Take(operation, resource, amount); !within.ok()) {
      ++refusals_;
      return within;
    }
  }
  in_use += amount;
  return Charge(this, resource, amount);
}

void Quota::Return(Resource resource, uint64_t amount) noexcept {
  uint64_t& in_use = in_use_[static_cast<size_t>(resource)];
  RD_CHECK(in_use >= amount, "more was given back than was taken");
  in_use -= amount;
  if (user_ != nullptr) user_->Return(resource, amount);
}

absl::StatusOr<HostBudget::Hold> HostBudget::Take(const char* operation, uint64_t bytes) {
  if (bytes > limit_bytes_ - in_use_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        operation, ": over what all sessions together may hold: limit=max_total_pool_bytes value=",
        limit_bytes_, " in_use=", in_use_bytes_, " asked=", bytes));
  }
  in_use_bytes_ += bytes;
  return Hold(this, bytes);
}

}  // namespace rdmad::session
