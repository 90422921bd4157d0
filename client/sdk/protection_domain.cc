#include "client/sdk/protection_domain.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/pool_mapping.h"
#include "client/sdk/status_macros.h"

namespace rdmad {
namespace sdk {
namespace {

absl::StatusOr<std::shared_ptr<PoolMapping>> PoolOf(const PdState& pd, const void* addr, size_t length_bytes,
                                                    const char* operation) {
  if (length_bytes == 0) return absl::InvalidArgumentError(absl::StrCat(operation, ": length_bytes=0"));
  if (!pd.session()->alive()) return pd.session()->DeadError();
  std::shared_ptr<PoolMapping> pool = pd.session()->FindPool(addr, length_bytes);
  if (pool == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(operation, ": addr=0x", absl::Hex(reinterpret_cast<uintptr_t>(addr)), " length_bytes=",
                     length_bytes, ": not within one rdmad::Pool of this session; allocate the memory from a Pool"));
  }
  return pool;
}

}  // namespace

absl::Status Registration::Deregister() {
  if (gone_.exchange(true)) return absl::OkStatus();
  v1::DeregisterRegionRequest request;
  request.set_region(handle_);
  return session_->Release(rpc::kDeregisterRegion, request);
}

PdState::PdState(std::shared_ptr<Session> session, uint64_t handle, uint32_t device_index) noexcept
    : session_(std::move(session)), handle_(handle), device_index_(device_index) {}

absl::StatusOr<std::shared_ptr<PdState>> PdState::Alloc(const std::shared_ptr<Session>& session,
                                                        uint32_t device_index) {
  v1::AllocPdRequest request;
  request.set_device_index(device_index);
  SDK_ASSIGN_OR_RETURN(const v1::AllocPdReply reply, session->Call(rpc::kAllocPd, request));
  std::shared_ptr<PdState> pd(new PdState(session, reply.pd(), device_index));
  session->AddPd(pd);
  return pd;
}

PdState::~PdState() {
  covers_.clear();
  v1::DeallocPdRequest request;
  request.set_pd(handle_);
  session_->Release(rpc::kDeallocPd, request).IgnoreError();
}

absl::StatusOr<std::shared_ptr<Registration>> PdState::Cover(const PoolMapping& pool) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Registration>& cover = covers_[pool.handle()];
  if (cover == nullptr) {
    absl::StatusOr<std::shared_ptr<Registration>> made =
        Register(*this, pool, pool.data(), pool.size_bytes(), kAccessLocalWrite);
    if (!made.ok()) {
      covers_.erase(pool.handle());
      return made.status();
    }
    cover = std::move(made).value();
  }
  return cover;
}

void PdState::ForgetPool(uint64_t pool_handle) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = covers_.find(pool_handle);
  if (found == covers_.end()) return;
  found->second->Forget();  // DestroyPool revokes it
  covers_.erase(found);
}

absl::StatusOr<std::shared_ptr<Registration>> Register(const PdState& pd, const PoolMapping& pool,
                                                       const std::byte* addr, size_t length_bytes, uint32_t access) {
  v1::RegisterRegionRequest request;
  request.set_pd(pd.handle());
  request.set_pool(pool.handle());
  request.set_offset_bytes(static_cast<uint64_t>(addr - pool.data()));
  request.set_length_bytes(length_bytes);
  request.set_iova(reinterpret_cast<uintptr_t>(addr));
  request.set_access(access);
  SDK_ASSIGN_OR_RETURN(const v1::RegisterRegionReply reply, pd.session()->Call(rpc::kRegisterRegion, request));
  return std::make_shared<Registration>(pd.session(), reply.region(), reply.lkey(), reply.rkey());
}

absl::StatusOr<MemoryRegion> RegMsgs(const std::shared_ptr<PdState>& pd, const void* addr, size_t length_bytes) {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<PoolMapping> pool, PoolOf(*pd, addr, length_bytes, "reg_msgs"));
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<Registration> cover, pd->Cover(*pool));
  std::byte* first = pool->data() + (static_cast<const std::byte*>(addr) - pool->data());
  const uint32_t lkey = cover->lkey();
  auto state = std::make_shared<RegionState>();
  *state = {std::move(pool), pd, std::move(cover), true};
  return MemoryRegion(std::move(state), first, length_bytes, lkey, 0);
}

absl::StatusOr<MemoryRegion> RegExact(const std::shared_ptr<PdState>& pd, const void* addr, size_t length_bytes,
                                      uint32_t access, const char* operation) {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<PoolMapping> pool, PoolOf(*pd, addr, length_bytes, operation));
  std::byte* first = pool->data() + (static_cast<const std::byte*>(addr) - pool->data());
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<Registration> registration, Register(*pd, *pool, first, length_bytes, access));
  const uint32_t lkey = registration->lkey();
  const uint32_t rkey = registration->rkey();
  auto state = std::make_shared<RegionState>();
  *state = {std::move(pool), pd, std::move(registration), false};
  return MemoryRegion(std::move(state), first, length_bytes, lkey, rkey);
}

}  // namespace sdk

MemoryRegion::MemoryRegion(std::shared_ptr<sdk::RegionState> state, std::byte* addr, size_t length_bytes,
                           uint32_t lkey, uint32_t rkey) noexcept
    : state_(std::move(state)), addr_(addr), length_bytes_(length_bytes), lkey_(lkey), rkey_(rkey) {}

absl::Status MemoryRegion::Dereg() {
  const std::shared_ptr<sdk::RegionState> state = std::move(state_);
  *this = MemoryRegion();
  if (state == nullptr || state->is_cover || state.use_count() > 1) return absl::OkStatus();
  return state->registration->Deregister();
}

absl::StatusOr<ProtectionDomain> ProtectionDomain::Alloc(const Client& client, uint32_t device_index) {
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::Session> session, client.state()->Live());
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::PdState> state, sdk::PdState::Alloc(session, device_index));
  return ProtectionDomain(std::move(state));
}

uint32_t ProtectionDomain::device_index() const noexcept { return state_->device_index(); }

absl::StatusOr<MemoryRegion> ProtectionDomain::RegMsgs(const void* addr, size_t length_bytes) const {
  return sdk::RegMsgs(state_, addr, length_bytes);
}

absl::StatusOr<MemoryRegion> ProtectionDomain::RegRead(const void* addr, size_t length_bytes) const {
  return sdk::RegExact(state_, addr, length_bytes, kAccessLocalWrite | kAccessRemoteRead, "reg_read");
}

absl::StatusOr<MemoryRegion> ProtectionDomain::RegWrite(const void* addr, size_t length_bytes) const {
  return sdk::RegExact(state_, addr, length_bytes, kAccessLocalWrite | kAccessRemoteWrite, "reg_write");
}

absl::StatusOr<MemoryRegion> ProtectionDomain::Reg(const void* addr, size_t length_bytes, uint32_t access) const {
  return sdk::RegExact(state_, addr, length_bytes, access, "reg_mr");
}

}  // namespace rdmad
