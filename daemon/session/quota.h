// What one session may hold, and what it holds now.
//
// Whoever makes an object charges the quota first and keeps the Charge in the object: when the
// object dies, on whatever path, the charge is given back. A refused charge names the limit, its
// value, what is in use and what was asked, so that the person who hits it knows which number to
// raise.
//
// What the sessions of one user together may hold is UserQuota's; a charge here is one there, too.
// HostBudget does the same for what all sessions together may hold.
//
// Thread: control. Owner: Session. A Charge must not outlive its Quota.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rdmad::session {

// The numbers of [session_limits] in the configuration, and of [user_limits].
struct SessionLimits {
  uint32_t max_qps = 16384;
  uint32_t max_cqs = 16384;
  uint32_t max_pds = 1024;
  uint32_t max_regions = 65536;
  uint32_t max_pools = 1024;
  uint64_t max_pool_bytes = uint64_t{16} << 30;
  // Of all regions: bytes that several regions cover count several times, as the tables that a
  // device has for them do.
  uint64_t max_region_bytes = uint64_t{64} << 30;
  uint32_t max_cm_ids = 16384;
  // Of all listeners together. A small part of what the soft device's CM has room for, and all
  // share that.
  uint32_t max_pending_requests = 4096;
  // Event and completion channels together. Each is a pipe: a descriptor here, one at the client,
  // and 1 KiB of kernel memory while it is empty. An Endpoint of the SDK has one.
  uint32_t max_channels = 4096;
  // Of a session: of the memory behind its queues, kept by memory::ArenaSet. Of a user: of queues.
  uint64_t max_arena_bytes = uint64_t{1} << 30;
  uint32_t max_srqs = 1024;
  uint32_t max_ahs = 8192;
  uint32_t max_mws = 4096;
  uint32_t max_multicasts = 64;  // attachments of QPs to groups

  friend bool operator==(const SessionLimits&, const SessionLimits&) = default;
};

enum class Resource : uint8_t {
  kQps,
  kCqs,
  kPds,
  kRegions,
  kPools,
  kPoolBytes,
  kRegionBytes,
  kCmIds,
  kPendingRequests,
  kChannels,
  kSrqs,
  kAhs,
  kMws,
  kMulticasts,
  kArenaBytes,
};
inline constexpr size_t kResourceCount = 15;

// "max_qps": the limit's name in the configuration.
const char* LimitName(Resource resource) noexcept;
uint64_t LimitOf(const SessionLimits& limits, Resource resource) noexcept;

class Quota;
class UserQuota;

// A part of a quota, given back on destruction. Move-only; the default value holds nothing.
class Charge {
 public:
  Charge() = default;
  Charge(Charge&& other) noexcept
      : quota_(std::exchange(other.quota_, nullptr)),
        resource_(other.resource_),
        amount_(other.amount_) {}
  Charge& operator=(Charge&& other) noexcept;
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge();

  [[nodiscard]] uint64_t amount() const noexcept { return quota_ == nullptr ? 0 : amount_; }

 private:
  friend class Quota;
  Charge(Quota* quota, Resource resource, uint64_t amount) noexcept
      : quota_(quota), resource_(resource), amount_(amount) {}

  Quota* quota_ = nullptr;
  Resource resource_ = Resource::kQps;
  uint64_t amount_ = 0;
};

class Quota {
 public:
  // `user` outlives the quota; null: no user's quota is charged.
  explicit Quota(const SessionLimits& limits, UserQuota* user = nullptr);
  Quota(const Quota&) = delete;
  Quota& operator=(const Quota&) = delete;
  ~Quota();

  // `operation` opens the message: "create_qp: over the session's quota: limit=max_qps value=8
  // in_use=8 asked=1". Errors: ResourceExhausted, of this quota or of the user's.
  absl::StatusOr<Charge> Take(const char* operation, Resource resource, uint64_t amount = 1);

  [[nodiscard]] uint64_t in_use(Resource resource) const noexcept {
    return in_use_[static_cast<size_t>(resource)];
  }
  [[nodiscard]] const SessionLimits& limits() const noexcept { return limits_; }
  // How often a charge was refused.
  [[nodiscard]] uint64_t refusals() const noexcept { return refusals_; }

 private:
  friend class Charge;
  void Return(Resource resource, uint64_t amount) noexcept;

  const SessionLimits limits_;
  UserQuota* const user_;
  std::array<uint64_t, kResourceCount> in_use_{};
  uint64_t refusals_ = 0;
};

// What the pools of all sessions together may take.
// Thread: control. Owner: Daemon; it outlives every session.
class HostBudget {
 public:
  explicit HostBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Part of the budget, given back on destruction. Move-only.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
      if (budget_ != nullptr) budget_->in_use_bytes_ -= bytes_;
    }

   private:
    friend class HostBudget;
    Hold(HostBudget* budget, uint64_t bytes) noexcept : budget_(budget), bytes_(bytes) {}
    HostBudget* budget_ = nullptr;
    uint64_t bytes_ = 0;
  };

  // Errors: ResourceExhausted, named like a quota's.
  absl::StatusOr<Hold> Take(const char* operation, uint64_t bytes);

  [[nodiscard]] uint64_t in_use_bytes() const noexcept { return in_use_bytes_; }
  [[nodiscard]] uint64_t limit_bytes() const noexcept { return limit_bytes_; }

 private:
  const uint64_t limit_bytes_;
  uint64_t in_use_bytes_ = 0;
};

}  // namespace rdmad::session
