#include "client/sdk/session.h"

#include <limits.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/map_segment.h"
#include "client/sdk/pool_mapping.h"
#include "client/sdk/protection_domain.h"
#include "client/sdk/status_macros.h"

namespace rdmad::sdk {
namespace {

constexpr absl::Duration kDescriptorTimeout = absl::Seconds(5);
constexpr int64_t kLookEveryNs = 20'000'000;

// gRPC wants an absolute path, and the directory of the process may change.
std::string AbsolutePath(const std::string& path) {
  char resolved[PATH_MAX];
  return ::realpath(path.c_str(), resolved) != nullptr ? std::string(resolved) : path;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Session>> Session::Attach(const std::string& run_dir, const AttachOptions& options) {
  SDK_ASSIGN_OR_RETURN(Attachment attachment,
                       AttachToDaemon(run_dir, options.name, Deadline::After(options.deadline)));
  std::unique_ptr<ControlChannel> channel =
      ConnectControlChannel(AbsolutePath(run_dir) + "/rdmad.sock", attachment.reply.token());
  return Create(std::move(attachment), std::move(channel), run_dir, options.call_timeout);
}

absl::StatusOr<std::shared_ptr<Session>> Session::Create(Attachment attachment, std::unique_ptr<ControlChannel> channel,
                                                         const std::string& run_dir, absl::Duration call_timeout) {
  SDK_ASSIGN_OR_RETURN(std::unique_ptr<Lane> first,
                       Lane::Map("attach", {std::move(attachment.control_segment),
                                            attachment.reply.control_segment_bytes(), std::move(attachment.engine_page),
                                            attachment.reply.engine_page_bytes(), std::move(attachment.wake_pipe)}));
  return std::shared_ptr<Session>(
      new Session(std::move(attachment), std::move(channel), run_dir, call_timeout, std::move(first)));
}

Session::Session(Attachment attachment, std::unique_ptr<ControlChannel> channel, const std::string& run_dir,
                 absl::Duration call_timeout, std::unique_ptr<Lane> first_lane)
    : id_(attachment.reply.session_id()),
      daemon_version_(attachment.reply.daemon_version()),
      run_dir_(run_dir),
      call_timeout_(call_timeout),
      socket_(std::move(attachment.socket)),
      channel_(std::move(channel)),
      async_pipe_(std::move(attachment.async_channel)) {
  lanes_.emplace(0, std::move(first_lane));
}

Session::~Session() = default;

absl::Status Session::DeadError() const {
  return absl::UnavailableError(
      absl::StrCat("rdmad at ", run_dir_, " is gone, and session ", id_, " with it; make the object anew"));
}

absl::Status Session::CallRaw(const char* path, const google::protobuf::MessageLite& request,
                              google::protobuf::MessageLite* reply) {
  if (!alive()) return DeadError();
  absl::Status status = channel_->Call(path, request, reply, Deadline::After(call_timeout_));
  if (status.ok()) return status;
  // Without a daemon; or with a new one on the same socket, which knows nothing of this session.
  if ((absl::IsUnavailable(status) || absl::IsUnauthenticated(status)) && !CheckAlive()) return DeadError();
  return status;
}

bool Session::CheckAlive() noexcept {
  if (alive() && socket_.HungUp()) MarkDead();
  return alive();
}

bool Session::CheckAliveNowAndThen() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  const int64_t now_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  // Relaxed: at worst two threads look.
  if (now_ns - last_look_ns_.load(std::memory_order_relaxed) < kLookEveryNs) return alive();
  last_look_ns_.store(now_ns, std::memory_order_relaxed);
  return CheckAlive();
}

absl::StatusOr<UniqueFd> Session::TakeDescriptor(uint64_t tag, v1::DescriptorKind kind) {
  absl::StatusOr<UniqueFd> fd = socket_.TakeDescriptor(tag, kind, Deadline::After(kDescriptorTimeout));
  if (!fd.ok() && !CheckAlive()) return DeadError();
  return fd;
}

absl::StatusOr<std::byte*> Session::ArenaData(const v1::QueueLocation& location) {
  std::unique_lock lock(arena_mutex_);
  if (location.descriptor_tag() != 0) {
    SDK_ASSIGN_OR_RETURN(UniqueFd fd, TakeDescriptor(location.descriptor_tag(), v1::DESCRIPTOR_KIND_ARENA));
    SDK_ASSIGN_OR_RETURN(Mapping mapping, MapSegment<shm::SegmentHeader>(fd, location.arena_bytes(),
                                                                         PROT_READ | PROT_WRITE,
                                                                         shm::SegmentKind::kArena, "ring arena"));
    std::byte* data = mapping.data();
    arenas_.insert_or_assign(location.arena(), std::move(mapping));
    arena_mapped_.notify_all();
    return data;
  }
  // Another thread may have got the reply that brought the descriptor, and be just behind.
  const bool mapped = arena_mapped_.wait_for(lock, std::chrono::seconds(5),
                                             [&] { return arenas_.find(location.arena()) != arenas_.end(); });
  if (!mapped) return absl::InternalError(absl::StrCat("ring arena ", location.arena(), ": no descriptor came"));
  const Mapping& mapping = arenas_.find(location.arena())->second;
  if (mapping.size_bytes() != location.arena_bytes()) {
    return absl::InternalError(absl::StrCat("ring arena ", location.arena(), ": bytes=", location.arena_bytes(),
                                            " mapped=", mapping.size_bytes()));
  }
  return mapping.data();
}

absl::StatusOr<MappedQueue> Session::MapQueue(const v1::QueueLocation& location, uint64_t queue_bytes) {
  SDK_ASSIGN_OR_RETURN(std::byte * data, ArenaData(location));
  const uint32_t slot_count = location.slot_count();
  if (slot_count == 0 || (slot_count & (slot_count - 1)) != 0 || location.offset_bytes() % shm::kCacheLine != 0 ||
      location.offset_bytes() > location.arena_bytes() ||
      location.arena_bytes() - location.offset_bytes() < queue_bytes) {
    return absl::InternalError(absl::StrCat("ring arena ", location.arena(), ": bad queue: offset=",
                                            location.offset_bytes(), " slots=", slot_count, " bytes=", queue_bytes));
  }
  return MappedQueue{data + location.offset_bytes(), slot_count};
}

absl::StatusOr<const Lane*> Session::MapLane(uint32_t comp_vector, const v1::EngineLane* sent) {
  std::unique_lock lock(lane_mutex_);
  if (sent != nullptr) {
    Lane::Parts parts;
    SDK_ASSIGN_OR_RETURN(parts.control_segment,
                         TakeDescriptor(sent->control_segment_tag(), v1::DESCRIPTOR_KIND_CONTROL_SEGMENT));
    SDK_ASSIGN_OR_RETURN(parts.engine_page, TakeDescriptor(sent->engine_page_tag(), v1::DESCRIPTOR_KIND_ENGINE_PAGE));
    SDK_ASSIGN_OR_RETURN(parts.wake_pipe, TakeDescriptor(sent->wake_pipe_tag(), v1::DESCRIPTOR_KIND_WAKE_PIPE));
    parts.control_segment_bytes = sent->control_segment_bytes();
    parts.engine_page_bytes = sent->engine_page_bytes();
    SDK_ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane,
                         Lane::Map(absl::StrCat("completion vector ", comp_vector), std::move(parts)));
    lanes_.emplace(comp_vector, std::move(lane));
    lane_mapped_.notify_all();
  }
  // As with arenas: another thread may have got the reply that brought the descriptors, and be just behind.
  const bool mapped =
      lane_mapped_.wait_for(lock, std::chrono::seconds(5), [&] { return lanes_.find(comp_vector) != lanes_.end(); });
  if (!mapped) return absl::InternalError(absl::StrCat("completion vector ", comp_vector, ": no descriptors came"));
  return lanes_.find(comp_vector)->second.get();
}

void Session::AddPool(const std::shared_ptr<PoolMapping>& pool) {
  const std::lock_guard lock(objects_mutex_);
  pools_.insert_or_assign(pool->data(), pool);
}

void Session::RemovePool(const PoolMapping& pool) noexcept {
  std::vector<std::shared_ptr<PdState>> pds;
  {
    const std::lock_guard lock(objects_mutex_);
    pools_.erase(pool.data());
    for (const std::weak_ptr<PdState>& pd : pds_) pds.push_back(pd.lock());
  }
  for (const std::shared_ptr<PdState>& pd : pds) {
    if (pd != nullptr) pd->ForgetPool(pool.handle());
  }
}

std::shared_ptr<PoolMapping> Session::FindPool(const void* addr, size_t length_bytes) const {
  const std::byte* first = static_cast<const std::byte*>(addr);
  std::shared_ptr<PoolMapping> pool;  // outlives the lock: its end, if this is the last reference, takes it again
  const std::lock_guard lock(objects_mutex_);
  auto after = pools_.upper_bound(first);
  if (after == pools_.begin()) return nullptr;
  pool = std::prev(after)->second.lock();
  if (pool == nullptr) return nullptr;
  const size_t offset = static_cast<size_t>(first - pool->data());
  if (offset > pool->size_bytes() || pool->size_bytes() - offset < length_bytes) return nullptr;
  return pool;
}

void Session::AddReaper(Reaper* reaper) {
  const std::lock_guard lock(reapers_mutex_);
  reapers_.insert(reaper);
}

void Session::RemoveReaper(Reaper* reaper) noexcept {
  const std::lock_guard lock(reapers_mutex_);
  reapers_.erase(reaper);
}

void Session::Reap() noexcept {
  const std::lock_guard lock(reapers_mutex_);
  for (Reaper* reaper : reapers_) reaper->Reap();
}

void Session::AddPd(const std::shared_ptr<PdState>& pd) {
  const std::lock_guard lock(objects_mutex_);
  std::erase_if(pds_, [](const std::weak_ptr<PdState>& old) { return old.expired(); });
  pds_.push_back(pd);
}

absl::StatusOr<std::shared_ptr<PdState>> Session::DefaultPd(uint32_t device_index) {
  const std::lock_guard lock(default_pd_mutex_);
  std::weak_ptr<PdState>& slot = default_pds_[device_index];
  if (std::shared_ptr<PdState> pd = slot.lock(); pd != nullptr) return pd;
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<PdState> pd, PdState::Alloc(shared_from_this(), device_index));
  slot = pd;
  return pd;
}

ClientState::ClientState(AttachOptions options, std::string run_dir, std::shared_ptr<Session> session)
    : options_(std::move(options)), run_dir_(std::move(run_dir)), session_(std::move(session)) {}

std::shared_ptr<Session> ClientState::session() const {
  const std::lock_guard lock(mutex_);
  return session_;
}

absl::StatusOr<std::shared_ptr<Session>> ClientState::Live() {
  std::shared_ptr<Session> present = session();
  if (present->CheckAlive()) return present;
  // One thread looks for the daemon, the others wait for what it finds.
  const std::lock_guard attaching(attach_mutex_);
  present = session();
  if (present->CheckAlive()) return present;
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<Session> fresh, Session::Attach(run_dir_, options_));
  const std::lock_guard lock(mutex_);
  session_ = fresh;
  return fresh;
}

}  // namespace rdmad::sdk
