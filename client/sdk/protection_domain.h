// Protection domains and regions.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "client/sdk/session.h"
#include "rdmad/verbs.h"

namespace rdmad::sdk {

// One region of the daemon's. Its end deregisters it.
class Registration {
 public:
  Registration(std::shared_ptr<Session> session, uint64_t handle, uint32_t lkey, uint32_t rkey) noexcept
      : session_(std::move(session)), handle_(handle), lkey_(lkey), rkey_(rkey) {}
  ~Registration() { Deregister().IgnoreError(); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  uint32_t lkey() const noexcept { return lkey_; }
  uint32_t rkey() const noexcept { return rkey_; }
  // Once; later calls do nothing.
  absl::Status Deregister();
  // The daemon has revoked it already.
  void Forget() noexcept { gone_.store(true); }

 private:
  const std::shared_ptr<Session> session_;
  const uint64_t handle_;
  const uint32_t lkey_;
  const uint32_t rkey_;
  std::atomic<bool> gone_{false};
};

// What a MemoryRegion holds on to.
class RegionState {
 public:
  // Destroyed in reverse order: the registration goes before its PD and its pool.
  std::shared_ptr<PoolMapping> pool;
  std::shared_ptr<PdState> pd;
  std::shared_ptr<Registration> registration;
  bool is_cover = false;  // the PD's registration of the whole pool: stays for the next
};

// Thread: any. Owner: handles, QPs and regions.
class PdState {
 public:
  static absl::StatusOr<std::shared_ptr<PdState>> Alloc(const std::shared_ptr<Session>& session,
                                                        uint32_t device_index);
  ~PdState();
  PdState(const PdState&) = delete;
  PdState& operator=(const PdState&) = delete;

  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  uint64_t handle() const noexcept { return handle_; }
  uint32_t device_index() const noexcept { return device_index_; }

  // The registration of all of `pool` for local access, made with the first call.
  absl::StatusOr<std::shared_ptr<Registration>> Cover(const PoolMapping& pool);
  // The pool is about to go, and takes its cover along.
  void ForgetPool(uint64_t pool_handle) noexcept;

 private:
  PdState(std::shared_ptr<Session> session, uint64_t handle, uint32_t device_index) noexcept;

  const std::shared_ptr<Session> session_;
  const uint64_t handle_;
  const uint32_t device_index_;
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Registration>> covers_;  // by pool
};

// Registers [addr, addr + length_bytes) of `pool` in `pd`. The caller has checked that it lies within.
absl::StatusOr<std::shared_ptr<Registration>> Register(const PdState& pd, const PoolMapping& pool,
                                                       const std::byte* addr, size_t length_bytes, uint32_t access);

absl::StatusOr<MemoryRegion> RegMsgs(const std::shared_ptr<PdState>& pd, const void* addr, size_t length_bytes);
absl::StatusOr<MemoryRegion> RegExact(const std::shared_ptr<PdState>& pd, const void* addr, size_t length_bytes,
                                      uint32_t access, const char* operation);

}  // namespace rdmad::sdk
