#include "tests/sdk/fake_daemon.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "client/sdk/rpc.h"

namespace rdmad::sdk::testing {
namespace {

constexpr uint64_t kArenaBytes = 4 << 20;

// Everything here must work for a test to mean anything.
void Check(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

UniqueFd MakeSegment(uint64_t size_bytes) {
  UniqueFd fd(::memfd_create("fake", MFD_CLOEXEC));
  Check(fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) == 0, "memfd");
  return fd;
}

Mapping MapIt(const UniqueFd& fd, uint64_t size_bytes) {
  absl::StatusOr<Mapping> mapping = Mapping::Map(fd.get(), size_bytes, PROT_READ | PROT_WRITE, "fake");
  Check(mapping.ok(), "mmap");
  return std::move(mapping).value();
}

void WriteHeader(const Mapping& mapping, shm::SegmentKind kind) {
  auto* header = reinterpret_cast<shm::SegmentHeader*>(mapping.data());
  *header = {.magic = shm::kShmMagic, .version = shm::kShmVersion, .kind = kind, .size_bytes = mapping.size_bytes(),
             .reserved = {}};
}

void MakePipe(UniqueFd* read_end, UniqueFd* write_end) {
  int ends[2];
  Check(::pipe2(ends, O_CLOEXEC) == 0, "pipe");
  read_end->Reset(ends[0]);
  write_end->Reset(ends[1]);
}

void WriteAll(int fd, const void* data, size_t bytes) {
  Check(::write(fd, data, bytes) == static_cast<ssize_t>(bytes), "write");
}

}  // namespace

class FakeDaemon::Channel final : public ControlChannel {
 public:
  explicit Channel(FakeDaemon* daemon) : daemon_(daemon) {}
  absl::Status Call(const char* path, const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* reply, Deadline) override {
    if (daemon_->dead()) return absl::UnavailableError("connection refused");
    const std::string text = path;
    return daemon_->Call(text.substr(text.rfind('/') + 1), request, reply);
  }

 private:
  FakeDaemon* const daemon_;
};

FakeDaemon::FakeDaemon()
    : control_fd_(MakeSegment(sizeof(shm::ControlSegment))),
      engine_page_fd_(MakeSegment(4096)),
      control_(MapIt(control_fd_, sizeof(shm::ControlSegment))),
      engine_page_(MapIt(engine_page_fd_, 4096)),
      arena_fd_(MakeSegment(kArenaBytes)),
      arena_(MapIt(arena_fd_, kArenaBytes)),
      arena_used_(sizeof(shm::SegmentHeader)) {
  WriteHeader(control_, shm::SegmentKind::kControl);
  WriteHeader(engine_page_, shm::SegmentKind::kEnginePage);
  WriteHeader(arena_, shm::SegmentKind::kArena);
  int sockets[2];
  Check(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
  socket_.Reset(sockets[0]);
  client_socket_.Reset(sockets[1]);
  MakePipe(&wake_read_, &wake_write_);
  MakePipe(&async_read_, &async_write_);
}

FakeDaemon::~FakeDaemon() = default;

std::shared_ptr<Session> FakeDaemon::Attach() {
  Attachment attachment;
  attachment.socket = std::move(client_socket_);
  attachment.reply.set_session_id(7);
  attachment.reply.set_control_segment_bytes(control_.size_bytes());
  attachment.reply.set_engine_page_bytes(engine_page_.size_bytes());
  attachment.control_segment = std::move(control_fd_);
  attachment.engine_page = std::move(engine_page_fd_);
  attachment.wake_pipe = std::move(wake_write_);
  attachment.async_channel = std::move(async_read_);
  absl::StatusOr<std::shared_ptr<Session>> session =
      Session::Create(std::move(attachment), std::make_unique<Channel>(this), "/fake", absl::Seconds(5));
  Check(session.ok(), "session");
  return std::move(session).value();
}

std::shared_ptr<ClientState> FakeDaemon::AttachClient() {
  AttachOptions options;
  options.deadline = absl::ZeroDuration();
  return std::make_shared<ClientState>(options, "/nonexistent/fake", Attach());
}

void FakeDaemon::Die() {
  const std::lock_guard lock(mutex_);
  dead_ = true;
  socket_.Reset();
  wake_read_.Reset();
  async_write_.Reset();
  pipes_.clear();
}

void FakeDaemon::SendDescriptor(uint64_t tag, v1::DescriptorKind kind, int fd) {
  v1::DescriptorDelivery delivery;
  delivery.set_tag(tag);
  delivery.set_kind(kind);
  std::string bytes = delivery.SerializeAsString();
  iovec data{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  cmsghdr* message = CMSG_FIRSTHDR(&header);
  message->cmsg_level = SOL_SOCKET;
  message->cmsg_type = SCM_RIGHTS;
  message->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(message), &fd, sizeof(int));
  Check(::sendmsg(socket_.get(), &header, MSG_NOSIGNAL) >= 0, "sendmsg");
}

uint64_t FakeDaemon::SendPipe(uint64_t handle, v1::DescriptorKind kind) {
  UniqueFd read_end;
  MakePipe(&read_end, &pipes_[handle]);
  SendDescriptor(next_tag_, kind, read_end.get());
  return next_tag_++;
}

std::byte* FakeDaemon::AllocateRing(uint64_t bytes, uint32_t slot_count, v1::QueueLocation* location) {
  if (!arena_sent_) {
    SendDescriptor(next_tag_, v1::DESCRIPTOR_KIND_ARENA, arena_fd_.get());
    location->set_descriptor_tag(next_tag_++);
    arena_sent_ = true;
  }
  location->set_arena(1);
  location->set_arena_bytes(kArenaBytes);
  location->set_offset_bytes(arena_used_);
  location->set_slot_count(slot_count);
  std::byte* ring = arena_.data() + arena_used_;
  arena_used_ += (bytes + 63) / 64 * 64;
  Check(arena_used_ <= kArenaBytes, "arena");
  return ring;
}

absl::Status FakeDaemon::Call(const std::string& method, const google::protobuf::MessageLite& any_request,
                              google::protobuf::MessageLite* any_reply) {
  const std::lock_guard lock(mutex_);
  ++calls_[method];
  requests_[method] = any_request.SerializeAsString();
  if (const auto failure = failures_.find(method); failure != failures_.end()) {
    const absl::Status status = failure->second;
    failures_.erase(failure);
    return status;
  }
  if (method == "CreateCompletionChannel") {
    auto* reply = static_cast<v1::CreateCompletionChannelReply*>(any_reply);
    reply->set_channel(next_handle_++);
    reply->set_descriptor_tag(SendPipe(reply->channel(), v1::DESCRIPTOR_KIND_COMPLETION_CHANNEL));
  } else if (method == "DestroyCompletionChannel") {
    pipes_.erase(static_cast<const v1::DestroyCompletionChannelRequest&>(any_request).channel());
  } else if (method == "CreateEventChannel") {
    auto* reply = static_cast<v1::CreateEventChannelReply*>(any_reply);
    reply->set_channel(next_handle_++);
    reply->set_descriptor_tag(SendPipe(reply->channel(), v1::DESCRIPTOR_KIND_EVENT_CHANNEL));
  } else if (method == "DestroyEventChannel") {
    pipes_.erase(static_cast<const v1::DestroyEventChannelRequest&>(any_request).channel());
  } else if (method == "CreateCq") {
    const auto& request = static_cast<const v1::CreateCqRequest&>(any_request);
    auto* reply = static_cast<v1::CreateCqReply*>(any_reply);
    const uint32_t capacity = std::bit_ceil(request.depth());
    Cq cq;
    cq.ring = reinterpret_cast<shm::CqHeader*>(AllocateRing(shm::CqBytes(capacity), capacity, reply->mutable_ring()));
    cq.capacity = capacity;
    cq.channel = request.channel();
    reply->set_cq(next_handle_++);
    reply->set_depth(capacity);
    cqs_[reply->cq()] = cq;
  } else if (method == "DestroyCq") {
    cqs_.erase(static_cast<const v1::DestroyCqRequest&>(any_request).cq());
  } else if (method == "AllocPd") {
    static_cast<v1::AllocPdReply*>(any_reply)->set_pd(next_handle_++);
  } else if (AnswerNewer(method, any_request, any_reply)) {
    return absl::OkStatus();
  } else if (method == "CreateQp") {
    const auto& request = static_cast<const v1::CreateQpRequest&>(any_request);
    auto* reply = static_cast<v1::CreateQpReply*>(any_reply);
    const auto slots = [](uint32_t depth, uint32_t extra) { return std::bit_ceil(depth * (1 + extra)); };
    const uint32_t send_slots =
        slots(request.cap().max_send_wr(), std::max(shm::ExtraSlotsForSges(request.cap().max_send_sge()),
                                                    shm::ExtraSlotsForInline(request.cap().max_inline_bytes())));
    const uint32_t recv_slots =
        slots(request.cap().max_recv_wr(), shm::ExtraSlotsForSges(request.cap().max_recv_sge()));
    Qp qp;
    qp.send_ring = reinterpret_cast<shm::WorkQueueHeader*>(
        AllocateRing(shm::WorkQueueBytes(send_slots), send_slots, reply->mutable_send_ring()));
    qp.send_slots = send_slots;
    // The SRQ's own number, as with its creation, unless a test says otherwise.
    const uint32_t own = static_cast<uint32_t>(request.srq());
    reply->set_srq_doorbell_index(srq_doorbell != 0 ? srq_doorbell : own);
    if (request.srq() == 0) {
      qp.recv_ring = reinterpret_cast<shm::WorkQueueHeader*>(
          AllocateRing(shm::WorkQueueBytes(recv_slots), recv_slots, reply->mutable_recv_ring()));
    }
    qp.send_cq = request.send_cq();
    qp.recv_cq = request.recv_cq();
    qp.cookie = request.cookie();
    reply->set_qp(next_handle_++);
    qp.qpn = static_cast<uint32_t>(100 + reply->qp());
    reply->set_qpn(qp.qpn);
    reply->set_doorbell_index(static_cast<uint32_t>(reply->qp()));
    *reply->mutable_cap() = request.cap();
    qps_[reply->qp()] = qp;
  } else if (method == "DestroyQp") {
    qps_.erase(static_cast<const v1::DestroyQpRequest&>(any_request).qp());
  } else if (method == "CreateId") {
    const auto& request = static_cast<const v1::CreateIdRequest&>(any_request);
    static_cast<v1::CreateIdReply*>(any_reply)->set_id(next_handle_);
    ids_[next_handle_++] = {request.channel(), 0, 0};
  } else if (method == "DestroyId") {
    const uint64_t id = static_cast<const v1::DestroyIdRequest&>(any_request).id();
    static_cast<v1::DestroyIdReply*>(any_reply)->set_events_reported(ids_[id].reported);
    ids_.erase(id);
  } else if (method == "MigrateId") {
    const auto& request = static_cast<const v1::MigrateIdRequest&>(any_request);
    auto* reply = static_cast<v1::MigrateIdReply*>(any_reply);
    Id& id = ids_[request.id()];
    reply->set_events_reported(id.reported);
    reply->set_generation(id.generation + 1);
    id = {request.channel(), id.generation + 1, 0};
  } else if (method == "Disconnect") {
    static_cast<v1::DisconnectReply*>(any_reply)->set_over(connections_over_);
  } else if (method == "CreatePool") {
    const auto& request = static_cast<const v1::CreatePoolRequest&>(any_request);
    auto* reply = static_cast<v1::CreatePoolReply*>(any_reply);
    const uint64_t bytes = (request.size_bytes() + 4095) / 4096 * 4096;
    const UniqueFd fd = MakeSegment(bytes);
    reply->set_pool(next_handle_++);
    reply->set_size_bytes(bytes);
    reply->set_page_bytes(4096);
    SendDescriptor(next_tag_, v1::DESCRIPTOR_KIND_POOL, fd.get());
    reply->set_descriptor_tag(next_tag_++);
  } else if (method == "RegisterRegion") {
    auto* reply = static_cast<v1::RegisterRegionReply*>(any_reply);
    reply->set_region(next_handle_++);
    reply->set_lkey(static_cast<uint32_t>(1000 + reply->region()));
    reply->set_rkey(static_cast<uint32_t>(2000 + reply->region()));
  }
  return absl::OkStatus();
}

bool FakeDaemon::AnswerNewer(const std::string& method, const google::protobuf::MessageLite& any_request,
                             google::protobuf::MessageLite* any_reply) {
  if (method == "QueryDevices") {
    *static_cast<v1::QueryDevicesReply*>(any_reply) = devices_;
  } else if (method == "CreateSrq") {
    const auto& request = static_cast<const v1::CreateSrqRequest&>(any_request);
    auto* reply = static_cast<v1::CreateSrqReply*>(any_reply);
    Srq srq;
    srq.slot_count = std::bit_ceil(request.max_wr() * (1 + shm::ExtraSlotsForSges(request.max_sge())));
    srq.ring = reinterpret_cast<shm::WorkQueueHeader*>(
        AllocateRing(shm::WorkQueueBytes(srq.slot_count), srq.slot_count, reply->mutable_ring()));
    srq.max_wr = request.max_wr();
    srq.max_sge = request.max_sge();
    srq.limit = request.limit();
    reply->set_srq(next_handle_++);
    reply->set_max_wr(srq.max_wr);
    reply->set_max_sge(srq.max_sge);
    reply->set_doorbell_index(static_cast<uint32_t>(reply->srq()));
    srqs_[reply->srq()] = srq;
  } else if (method == "ModifySrq") {
    const auto& request = static_cast<const v1::ModifySrqRequest&>(any_request);
    srqs_.at(request.srq()).limit = request.limit();
  } else if (method == "QuerySrq") {
    const Srq& srq = srqs_.at(static_cast<const v1::QuerySrqRequest&>(any_request).srq());
    auto* reply = static_cast<v1::QuerySrqReply*>(any_reply);
    reply->set_max_wr(srq.max_wr);
    reply->set_max_sge(srq.max_sge);
    reply->set_limit(srq.limit);
  } else if (method == "DestroySrq") {
    srqs_.erase(static_cast<const v1::DestroySrqRequest&>(any_request).srq());
  } else if (method == "CreateAh") {
    auto* reply = static_cast<v1::CreateAhReply*>(any_reply);
    reply->set_ah(next_handle_++);
    reply->set_slot_handle(static_cast<uint32_t>(500 + reply->ah()));
  } else if (method == "AllocMw") {
    auto* reply = static_cast<v1::AllocMwReply*>(any_reply);
    reply->set_mw(next_handle_++);
    reply->set_rkey(0xabcdef00);
  } else {
    return false;
  }
  return true;
}

void FakeDaemon::Complete(uint64_t qp_handle, const Completion& completion, bool is_recv) {
  const std::lock_guard lock(mutex_);
  shm::Cqe cqe{};
  cqe.wr_id = completion.wr_id;
  cqe.status = completion.status;
  cqe.opcode = completion.opcode;
  cqe.flags = completion.flags;
  cqe.byte_len = completion.byte_len;
  cqe.imm_be = completion.imm_be;
  cqe.wqe_count = completion.wqe_count;
  cqe.src_qpn = completion.src_qpn;
  const Qp& qp = qps_.at(qp_handle);
  const uint64_t cq_handle = is_recv ? qp.recv_cq : qp.send_cq;
  const Cq& cq = cqs_.at(cq_handle);
  cqe.qpn = qp.qpn;
  cqe.qp_cookie = qp.cookie;
  if (is_recv) cqe.flags |= shm::kCqeRecvQueue;
  const uint32_t tail = cq.ring->tail.load();
  reinterpret_cast<shm::Cqe*>(cq.ring + 1)[tail & (cq.capacity - 1)] = cqe;
  cq.ring->tail.store(tail + 1);
  if (cq.channel != 0 && cq.ring->armed.exchange(shm::kCqNotArmed) != shm::kCqNotArmed) {
    const shm::CompletionEvent event{cq_handle};
    WriteAll(pipes_.at(cq.channel).get(), &event, sizeof(event));
  }
}

uint32_t FakeDaemon::PublishedSends(uint64_t qp) const {
  const std::lock_guard lock(mutex_);
  return qps_.at(qp).send_ring->tail.load();
}

uint32_t FakeDaemon::PublishedReceives(uint64_t qp) const {
  const std::lock_guard lock(mutex_);
  return qps_.at(qp).recv_ring->tail.load();
}

shm::WorkSlot FakeDaemon::LastSend(uint64_t qp_handle) const {
  const std::lock_guard lock(mutex_);
  const Qp& qp = qps_.at(qp_handle);
  return reinterpret_cast<const shm::WorkSlot*>(qp.send_ring + 1)[(qp.send_ring->tail.load() - 1) &
                                                                  (qp.send_slots - 1)];
}

shm::WorkSlot FakeDaemon::TakeSrqReceive(uint64_t srq_handle) {
  const std::lock_guard lock(mutex_);
  const Srq& srq = srqs_.at(srq_handle);
  const uint32_t head = srq.ring->head.load();
  if (head == srq.ring->tail.load()) std::abort();  // nothing there
  const shm::WorkSlot slot = reinterpret_cast<const shm::WorkSlot*>(srq.ring + 1)[head & (srq.slot_count - 1)];
  srq.ring->head.store(head + 1 + slot.extra_slots);
  return slot;
}

uint32_t FakeDaemon::PublishedSrqReceives(uint64_t srq) const {
  const std::lock_guard lock(mutex_);
  return srqs_.at(srq).ring->tail.load() - srqs_.at(srq).ring->head.load();
}

bool FakeDaemon::DoorbellRung(uint64_t queue) const {
  const std::lock_guard lock(mutex_);
  const uint32_t index = static_cast<uint32_t>(queue);
  const auto* control = reinterpret_cast<const shm::ControlSegment*>(control_.data());
  return (control->words[index / 64].load() & (uint64_t{1} << (index % 64))) != 0;
}

void FakeDaemon::SetEngineSleeping(bool sleeping) {
  reinterpret_cast<shm::EnginePage*>(engine_page_.data())->sleeping.store(sleeping ? 1 : 0);
}

int FakeDaemon::TakeWakes() {
  ::fcntl(wake_read_.get(), F_SETFL, O_NONBLOCK);
  char bytes[256];
  const ssize_t count = ::read(wake_read_.get(), bytes, sizeof(bytes));
  return count < 0 ? 0 : static_cast<int>(count);
}

void FakeDaemon::SendEvent(shm::CmEvent event) {
  const std::lock_guard lock(mutex_);
  Id& owner = ids_.at(event.listen_handle != 0 ? event.listen_handle : event.id_handle);
  event.generation = owner.generation;
  ++owner.reported;
  WriteAll(pipes_.at(owner.channel).get(), &event, sizeof(event));
}

void FakeDaemon::SendEvent(uint64_t id, uint32_t type, int status) {
  shm::CmEvent event{};
  event.type = type;
  event.status = status;
  event.id_handle = id;
  event.device_index = shm::kNoDevice;
  SendEvent(event);
}

uint64_t FakeDaemon::SendConnectRequest(uint64_t listener) {
  const std::lock_guard lock(mutex_);
  const uint64_t id = next_handle_++;
  ids_[id] = {ids_.at(listener).channel, 0, 0};
  shm::CmEvent event{};
  event.type = 4;
  event.id_handle = id;
  event.listen_handle = listener;
  event.device_index = 0;
  event.local = {.family = 4, .port = 7471, .scope_id = 0, .addr = {127, 0, 0, 2}};
  event.peer = {.family = 4, .port = 50000, .scope_id = 0, .addr = {127, 0, 0, 3}};
  event.private_data_bytes = 3;
  std::memcpy(event.private_data, "abc", 3);
  SendEvent(event);
  return id;
}

int FakeDaemon::calls(const std::string& method) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(method);
  return found == calls_.end() ? 0 : found->second;
}

void FakeDaemon::FailNext(const std::string& method, absl::Status status) {
  const std::lock_guard lock(mutex_);
  failures_[method] = std::move(status);
}

bool FakeDaemon::HasId(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return ids_.count(id) != 0;
}

}  // namespace rdmad::sdk::testing
