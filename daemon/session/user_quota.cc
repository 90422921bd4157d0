#include "daemon/session/user_quota.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace rdmad::session {

UserQuota::~UserQuota() {
  for (const uint64_t in_use : in_use_) RD_CHECK(in_use == 0, "a session outlived its user's quota");
}

absl::Status UserQuota::Take(const char* operation, Resource resource, uint64_t amount) {
  uint64_t& in_use = in_use_[static_cast<size_t>(resource)];
  if (limits_) {
    const uint64_t limit = LimitOf(*limits_, resource);
    if (amount > limit - std::min(limit, in_use)) {
      ++refusals_;
      return absl::ResourceExhaustedError(absl::StrCat(
          operation, ": over what all sessions of the user together may hold: limit=user_limits.",
          LimitName(resource), " value=", limit, " in_use=", in_use, " asked=", amount,
          " uid=", uid_, "; end sessions of theirs, or raise it in rdmad.toml"));
    }
  }
  in_use += amount;
  return absl::OkStatus();
}

void UserQuota::Return(Resource resource, uint64_t amount) noexcept {
  uint64_t& in_use = in_use_[static_cast<size_t>(resource)];
  RD_CHECK(in_use >= amount, "more was given back than was taken");
  in_use -= amount;
}

}  // namespace rdmad::session
