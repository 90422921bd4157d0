#include "client/sdk/event_channel.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/pipe_status.h"
#include "client/sdk/queue_pair.h"
#include "client/sdk/status_macros.h"

namespace rdmad::sdk {
namespace {

constexpr size_t kPeekAll = 1024;  // more records than a pipe holds
constexpr uint32_t kConnectRequest = static_cast<uint32_t>(CmEventType::kConnectRequest);

uint64_t OwnerHandle(const shm::CmEvent& event) noexcept {
  return event.type == kConnectRequest ? event.listen_handle : event.id_handle;
}

// Moves those that `wanted` says yes to out of `events`, in order.
template <typename Wanted>
std::vector<shm::CmEvent> TakeFrom(std::deque<shm::CmEvent>* events, const Wanted& wanted) {
  std::vector<shm::CmEvent> taken;
  std::copy_if(events->begin(), events->end(), std::back_inserter(taken), wanted);
  std::erase_if(*events, wanted);
  return taken;
}

ConnParam ParamOf(const shm::CmEvent& event) {
  ConnParam param;
  const size_t bytes = std::min<size_t>(event.private_data_bytes, sizeof(event.private_data));
  param.private_data.assign(event.private_data, event.private_data + bytes);
  param.responder_resources = event.responder_resources;
  param.initiator_depth = event.initiator_depth;
  param.flow_control = event.flow_control;
  param.retry_count = event.retry_count;
  param.rnr_retry_count = event.rnr_retry_count;
  param.srq = event.srq != 0;
  param.qpn = event.qpn;
  param.qkey = event.qkey;
  if (event.qp_type != 0) param.qp_type = static_cast<QpType>(event.qp_type);
  return param;
}

UdParam UdOf(const shm::CmEvent& event) {
  UdParam ud;
  ud.qpn = event.qpn;
  ud.qkey = event.qkey;
  std::copy(std::begin(event.ah_dest_gid), std::end(event.ah_dest_gid), ud.ah.dest_gid.begin());
  ud.ah.sgid_index = event.ah_sgid_index;
  ud.ah.flow_label = event.ah_flow_label;
  ud.ah.traffic_class = event.ah_traffic_class;
  ud.ah.hop_limit = event.ah_hop_limit;
  ud.ah.dlid = event.ah_dlid;
  ud.ah.service_level = event.ah_service_level;
  ud.ah.src_path_bits = event.ah_src_path_bits;
  ud.ah.is_global = event.ah_no_grh == 0;
  return ud;
}

}  // namespace

Address FromShm(const shm::SocketAddress& address) noexcept {
  Address out;
  out.family = static_cast<uint8_t>(address.family);
  out.port = address.port;
  out.scope_id = address.scope_id;
  std::copy(std::begin(address.addr), std::end(address.addr), out.bytes.begin());
  return out;
}

Address FromProto(const v1::SocketAddress& address) noexcept {
  Address out;
  out.family = static_cast<uint8_t>(address.family());
  out.port = static_cast<uint16_t>(address.port());
  out.scope_id = address.scope_id();
  std::copy_n(address.addr().begin(), std::min(address.addr().size(), out.bytes.size()), out.bytes.begin());
  return out;
}

v1::SocketAddress ToProto(const Address& address) {
  v1::SocketAddress out;
  out.set_family(address.family);
  if (address.family == 0) return out;
  out.set_port(address.port);
  out.set_scope_id(address.scope_id);
  out.set_addr(address.bytes.data(), address.family == 4 ? 4 : 16);
  return out;
}

void IdState::Learn(const shm::CmEvent& event) {
  const std::lock_guard lock(mutex);
  if (event.local.family != 0) local = FromShm(event.local);
  if (event.peer.family != 0) peer = FromShm(event.peer);
  if (event.device_index != shm::kNoDevice) device_index = event.device_index;
  if (qp == nullptr || qp->type() == QpType::kUd) return;
  switch (static_cast<CmEventType>(event.type)) {
    case CmEventType::kEstablished:
      qp->set_state(QpState::kRts);
      break;
    case CmEventType::kRejected:
    case CmEventType::kConnectError:
    case CmEventType::kDisconnected:
    case CmEventType::kDeviceRemoval:
      qp->OnConnectionOver();
      break;
    default:
      break;
  }
}

void IdState::CountEvent() noexcept {
  const std::lock_guard lock(mutex);
  ++events_;
}

void IdState::AckEvent() noexcept {
  const std::lock_guard lock(mutex);
  ++acked_events_;
  acked_.notify_all();
}

void IdState::WaitForAcks() {
  std::unique_lock lock(mutex);
  acked_.wait(lock, [this] { return events_ == acked_events_; });
  events_ = 0;
  acked_events_ = 0;
}

uint32_t IdState::events() const noexcept {
  const std::lock_guard lock(mutex);
  return events_;
}

EventChannelState::EventChannelState(std::shared_ptr<Session> session, uint64_t handle, UniqueFd fd) noexcept
    : session_(std::move(session)), handle_(handle), pipe_(std::move(fd)) {}

absl::StatusOr<std::shared_ptr<EventChannelState>> EventChannelState::Create(const std::shared_ptr<Session>& session) {
  SDK_ASSIGN_OR_RETURN(const v1::CreateEventChannelReply reply, session->Call(rpc::kCreateEventChannel, {}));
  absl::StatusOr<UniqueFd> fd = session->TakeDescriptor(reply.descriptor_tag(), v1::DESCRIPTOR_KIND_EVENT_CHANNEL);
  if (!fd.ok()) {
    v1::DestroyEventChannelRequest request;
    request.set_channel(reply.channel());
    session->Release(rpc::kDestroyEventChannel, request).IgnoreError();
    return fd.status();
  }
  return std::make_shared<EventChannelState>(session, reply.channel(), std::move(fd).value());
}

EventChannelState::~EventChannelState() {
  v1::DestroyEventChannelRequest request;
  request.set_channel(handle_);
  session_->Release(rpc::kDestroyEventChannel, request).IgnoreError();
}

void EventChannelState::AddId(const std::shared_ptr<IdState>& id, uint32_t generation) {
  const std::lock_guard lock(mutex_);
  ids_.insert_or_assign(id->handle, Entry{id, generation, false});
}

std::vector<shm::CmEvent> EventChannelState::TakeOut(const IdState& id, uint32_t reported) {
  const auto entry = ids_.find(id.handle);
  if (entry == ids_.end()) return {};
  const uint32_t generation = entry->second.generation;
  const auto is_of_id = [&](const shm::CmEvent& event) {
    return OwnerHandle(event) == id.handle && event.generation >= generation;
  };
  std::vector<shm::CmEvent> unread = TakeFrom(&pending_, is_of_id);
  if (reported != id.events()) {
    for (const shm::CmEvent& event : Peek(kPeekAll)) {
      if (!is_of_id(event)) continue;
      unread.push_back(event);
      if (event.type == kConnectRequest) moved_.insert(event.id_handle);
    }
    maybe_stale_ = true;
  }
  ids_.erase(entry);
  if (maybe_stale_) DropStaleFront();
  return unread;
}

void EventChannelState::RemoveId(const IdState& id, uint32_t reported) {
  {
    const std::lock_guard lock(mutex_);
    for (const shm::CmEvent& event : TakeOut(id, reported)) {
      if (event.type == kConnectRequest) orphans_.push_back(event.id_handle);
    }
  }
  DestroyOrphans();
}

std::vector<shm::CmEvent> EventChannelState::MoveIdAway(const IdState& id, uint32_t reported) {
  const std::lock_guard lock(mutex_);
  return TakeOut(id, reported);
}

std::vector<shm::CmEvent> EventChannelState::MoveRequestAway(uint64_t id_handle) {
  const std::lock_guard lock(mutex_);
  const auto is_of_id = [&](const shm::CmEvent& event) {
    return event.id_handle == id_handle && event.type != kConnectRequest;
  };
  std::vector<shm::CmEvent> unread = TakeFrom(&pending_, is_of_id);
  const std::vector<shm::CmEvent> in_pipe = Peek(kPeekAll);
  std::copy_if(in_pipe.begin(), in_pipe.end(), std::back_inserter(unread), is_of_id);
  return unread;
}

void EventChannelState::AddPending(const std::vector<shm::CmEvent>& events) {
  const std::lock_guard lock(mutex_);
  pending_.insert(pending_.end(), events.begin(), events.end());
}

bool EventChannelState::HasPending() const {
  const std::lock_guard lock(mutex_);
  return !pending_.empty();
}

EventChannelState::Entry* EventChannelState::FindEntry(const shm::CmEvent& event) {
  const auto found = ids_.find(OwnerHandle(event));
  if (found == ids_.end() || event.generation < found->second.generation) return nullptr;
  return &found->second;
}

void EventChannelState::OnStale(const shm::CmEvent& event) {
  if (event.type != kConnectRequest || moved_.erase(event.id_handle) != 0) return;
  orphans_.push_back(event.id_handle);
}

std::unique_ptr<EventRecord> EventChannelState::Deliver(const shm::CmEvent& event) {
  const Entry* entry = FindEntry(event);
  if (entry == nullptr) {
    OnStale(event);
    return nullptr;
  }
  auto record = std::make_unique<EventRecord>();
  record->raw = event;
  record->param = ParamOf(event);
  record->ud = UdOf(event);
  record->id = entry->id;
  record->id->CountEvent();
  if (event.type == kConnectRequest) {
    record->new_id = std::make_shared<IdState>(session_, event.id_handle, entry->id->port_space);
    record->new_id->channel = shared_from_this();
    record->new_id->Learn(event);
    ids_.insert_or_assign(event.id_handle, Entry{record->new_id, 0, false});
  } else {
    record->id->Learn(event);
  }
  return record;
}

std::unique_ptr<EventRecord> EventChannelState::NextRemoval() {
  for (auto& [handle, entry] : ids_) {
    if (entry.removal_reported) continue;
    entry.removal_reported = true;
    auto record = std::make_unique<EventRecord>();
    record->raw = {};
    record->raw.type = static_cast<uint32_t>(CmEventType::kDeviceRemoval);
    record->raw.status = -ENODEV;
    record->raw.id_handle = handle;
    record->raw.device_index = shm::kNoDevice;
    record->id = entry.id;
    record->id->CountEvent();
    return record;
  }
  return nullptr;
}

PipeResult EventChannelState::TryGet(std::unique_ptr<EventRecord>* record) {
  const std::lock_guard lock(mutex_);
  if (!pending_.empty()) {
    const shm::CmEvent event = pending_.front();
    pending_.pop_front();
    *record = Deliver(event);
    return PipeResult::kRecord;
  }
  shm::CmEvent event{};
  const PipeResult result = pipe_.TryRead(&event, sizeof(event));
  if (result == PipeResult::kRecord) {
    *record = Deliver(event);
    if (maybe_stale_) DropStaleFront();
  } else if (result == PipeResult::kHangup) {
    session_->MarkDead();
    *record = NextRemoval();
  }
  return result;
}

absl::StatusOr<std::unique_ptr<EventRecord>> EventChannelState::GetEvent(Deadline deadline) {
  while (true) {
    std::unique_ptr<EventRecord> record;
    const PipeResult result = TryGet(&record);
    DestroyOrphans();
    if (record != nullptr) return record;
    if (result == PipeResult::kRecord) continue;
    if (result == PipeResult::kHangup) return session_->DeadError();
    if (result == PipeResult::kError) return PipeStatus(result, "get_cm_event");
    const PipeResult waited = pipe_.WaitFor(deadline);
    if (waited != PipeResult::kRecord) return PipeStatus(waited, "get_cm_event");
  }
}

std::vector<shm::CmEvent> EventChannelState::Peek(size_t max_records) {
  std::vector<shm::CmEvent> events;
  if (!peek_in_.valid()) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return events;
    peek_out_.Reset(ends[0]);
    peek_in_.Reset(ends[1]);
  }
  const ssize_t copied =
      ::tee(pipe_.fd(), peek_in_.get(), max_records * sizeof(shm::CmEvent), SPLICE_F_NONBLOCK);
  for (ssize_t left = copied; left > 0;) {
    shm::CmEvent event;
    const ssize_t count = ::read(peek_out_.get(), &event, sizeof(event));
    if (count != static_cast<ssize_t>(sizeof(event))) break;
    events.push_back(event);
    left -= count;
  }
  return events;
}

void EventChannelState::DropStaleFront() {
  while (true) {
    const std::vector<shm::CmEvent> front = Peek(1);
    if (front.empty()) {
      maybe_stale_ = false;  // nothing is left at all
      moved_.clear();
      return;
    }
    if (FindEntry(front[0]) != nullptr) return;
    shm::CmEvent stale;
    if (pipe_.TryRead(&stale, sizeof(stale)) != PipeResult::kRecord) return;
    OnStale(stale);
  }
}

void EventChannelState::DestroyOrphans() {
  std::vector<uint64_t> orphans;
  {
    const std::lock_guard lock(mutex_);
    if (orphans_.empty()) return;
    orphans.swap(orphans_);
  }
  for (const uint64_t handle : orphans) {
    v1::DestroyIdRequest request;
    request.set_id(handle);
    session_->Release(rpc::kDestroyId, request).IgnoreError();
  }
}

}  // namespace rdmad::sdk
