#include "rdmad/pool.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/pool_mapping.h"
#include "client/sdk/status_macros.h"

namespace rdmad {
namespace sdk {

absl::StatusOr<std::shared_ptr<PoolMapping>> PoolMapping::Create(const std::shared_ptr<Session>& session,
                                                                 size_t size_bytes, const PoolOptions& options) {
  v1::CreatePoolRequest request;
  request.set_size_bytes(size_bytes);
  request.set_name(options.name);
  switch (options.huge_pages) {
    case HugePages::kNo:
      request.set_huge_pages(v1::HUGE_PAGES_NO);
      break;
    case HugePages::kPrefer:
      request.set_huge_pages(v1::HUGE_PAGES_PREFER);
      break;
    case HugePages::kRequire:
      request.set_huge_pages(v1::HUGE_PAGES_REQUIRE);
      break;
  }
  SDK_ASSIGN_OR_RETURN(const v1::CreatePoolReply reply, session->Call(rpc::kCreatePool, request));
  const auto map = [&]() -> absl::StatusOr<Mapping> {
    SDK_ASSIGN_OR_RETURN(UniqueFd fd, session->TakeDescriptor(reply.descriptor_tag(), v1::DESCRIPTOR_KIND_POOL));
    return Mapping::Map(fd.get(), reply.size_bytes(), PROT_READ | PROT_WRITE, "create_pool");
  };
  absl::StatusOr<Mapping> mapping = map();
  if (!mapping.ok()) {
    v1::DestroyPoolRequest destroy;
    destroy.set_pool(reply.pool());
    session->Release(rpc::kDestroyPool, destroy).IgnoreError();
    return mapping.status();
  }
  std::shared_ptr<PoolMapping> pool(
      new PoolMapping(session, reply.pool(), reply.page_bytes(), std::move(mapping).value()));
  session->AddPool(pool);
  return pool;
}

PoolMapping::PoolMapping(std::shared_ptr<Session> session, uint64_t handle, size_t page_bytes, Mapping mapping)
    : session_(std::move(session)),
      handle_(handle),
      page_bytes_(page_bytes),
      mapping_(std::move(mapping)),
      allocator_(mapping_.size_bytes()) {}

PoolMapping::~PoolMapping() {
  session_->RemovePool(*this);
  // The regions that remain are those that PDs cached.
  v1::DestroyPoolRequest request;
  request.set_pool(handle_);
  request.set_force(true);
  session_->Release(rpc::kDestroyPool, request).IgnoreError();
}

std::byte* PoolMapping::TryAllocate(size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const std::optional<size_t> offset = allocator_.Allocate(size_bytes);
  return offset.has_value() ? data() + *offset : nullptr;
}

void PoolMapping::Free(std::byte* data, size_t size_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  allocator_.Free(static_cast<size_t>(data - mapping_.data()), size_bytes);
}

size_t PoolMapping::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return allocator_.free_bytes();
}

size_t PoolMapping::LargestFree() const {
  const std::lock_guard lock(mutex_);
  return allocator_.LargestFree();
}

PoolState::PoolState(std::shared_ptr<ClientState> client, size_t size_bytes, PoolOptions options,
                     std::shared_ptr<PoolMapping> mapping)
    : client_(std::move(client)), size_bytes_(size_bytes), options_(std::move(options)), mapping_(std::move(mapping)) {}

std::shared_ptr<PoolMapping> PoolState::mapping() const {
  const std::lock_guard lock(mutex_);
  return mapping_;
}

absl::StatusOr<std::shared_ptr<PoolMapping>> PoolState::Live() {
  const std::lock_guard lock(mutex_);
  // Nothing else may have looked since the daemon went.
  if (mapping_->session()->CheckAliveNowAndThen()) return mapping_;
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, client_->Live());
  SDK_ASSIGN_OR_RETURN(mapping_, PoolMapping::Create(session, size_bytes_, options_));
  return mapping_;
}

}  // namespace sdk

Buffer::Buffer(std::shared_ptr<sdk::PoolMapping> mapping, std::byte* data, size_t size_bytes,
               size_t capacity_bytes) noexcept
    : mapping_(std::move(mapping)), data_(data), size_bytes_(size_bytes), capacity_bytes_(capacity_bytes) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  mapping_ = std::move(other.mapping_);
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  capacity_bytes_ = std::exchange(other.capacity_bytes_, 0);
  imm_ = other.imm_;
  has_imm_ = std::exchange(other.has_imm_, false);
  return *this;
}

void Buffer::Release() noexcept {
  if (mapping_ != nullptr && data_ != nullptr) mapping_->Free(data_, capacity_bytes_);
  mapping_ = nullptr;
  data_ = nullptr;
  size_bytes_ = 0;
  capacity_bytes_ = 0;
  has_imm_ = false;
}

Pool::Pool(std::shared_ptr<sdk::PoolState> state) : state_(std::move(state)) {}

absl::StatusOr<Pool> Pool::Create(const Client& client, size_t size_bytes, PoolOptions options) {
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::Session> session, client.state()->Live());
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::PoolMapping> mapping,
                       sdk::PoolMapping::Create(session, size_bytes, options));
  return Pool(
      std::make_shared<sdk::PoolState>(client.state(), size_bytes, std::move(options), std::move(mapping)));
}

absl::StatusOr<Buffer> Pool::Allocate(size_t size_bytes) {
  if (size_bytes == 0) return absl::InvalidArgumentError("pool: allocate: size_bytes=0");
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::PoolMapping> mapping, state_->Live());
  std::byte* data = mapping->TryAllocate(size_bytes);
  if (data == nullptr) {
    // Endpoints look at the ends of their sends only now and then.
    mapping->session()->Reap();
    data = mapping->TryAllocate(size_bytes);
  }
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("pool: allocate: size_bytes=", size_bytes, " free_bytes=",
                                                     mapping->free_bytes(), " largest_free_bytes=",
                                                     mapping->LargestFree(), " pool_bytes=", mapping->size_bytes()));
  }
  return Buffer(std::move(mapping), data, size_bytes, size_bytes);
}

absl::StatusOr<Buffer> Pool::AllocateCopy(std::span<const std::byte> bytes) {
  SDK_ASSIGN_OR_RETURN(Buffer buffer, Allocate(bytes.size()));
  std::memcpy(buffer.data(), bytes.data(), bytes.size());
  return buffer;
}

absl::StatusOr<Buffer> Pool::AllocateCopy(std::string_view text) {
  return AllocateCopy(std::as_bytes(std::span(text.data(), text.size())));
}

std::span<std::byte> Pool::memory() const {
  const std::shared_ptr<sdk::PoolMapping> mapping = state_->mapping();
  return {mapping->data(), mapping->size_bytes()};
}

size_t Pool::page_bytes() const { return state_->mapping()->page_bytes(); }
size_t Pool::size_bytes() const { return state_->mapping()->size_bytes(); }
size_t Pool::free_bytes() const { return state_->mapping()->free_bytes(); }

}  // namespace rdmad
