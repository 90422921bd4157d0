#include "tests/integration/hostile_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/base/status_macros.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kDepth = 64;
constexpr uint64_t kPoolBytes = 1 << 20;
constexpr uint64_t kIova = 0x10'0000'0000;

// Numbers of infiniband/verbs.h.
constexpr uint32_t kRc = 2;
constexpr uint32_t kAllAccess = 0xf;
constexpr uint32_t kInit = 1;
constexpr uint32_t kRtr = 2;
constexpr uint32_t kRts = 3;
constexpr uint32_t kMaskInit = 1 << 0 | 1 << 3 | 1 << 4 | 1 << 5;
constexpr uint32_t kMaskRtr = 1 << 0 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
constexpr uint32_t kMaskRts = 1 << 0 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
constexpr uint32_t kPathMtu1024 = 3;
constexpr uint32_t kPsn = 100;

}  // namespace

absl::StatusOr<SharedMapping> SharedMapping::Map(UniqueFd fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, "fstat");
  const auto size = static_cast<size_t>(info.st_size);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  return SharedMapping({static_cast<std::byte*>(memory), size});
}

SharedMapping::~SharedMapping() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

absl::StatusOr<std::unique_ptr<HostileClient>> HostileClient::Create(const std::string& run_dir,
                                                                     uint64_t seed) {
  RD_ASSIGN_OR_RETURN(RawClient raw, RawClient::Attach(run_dir, "hostile"));
  std::unique_ptr<HostileClient> client(new HostileClient(std::move(raw), seed));
  RD_RETURN_IF_ERROR(client->SetUp());
  return client;
}

absl::StatusOr<std::span<std::byte>> HostileClient::Map(UniqueFd fd) {
  RD_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Map(std::move(fd)));
  mappings_.push_back(std::move(mapping));
  return mappings_.back().bytes();
}

absl::Status HostileClient::SetUp() {
  RD_RETURN_IF_ERROR(Map(UniqueFd(::dup(raw_.control_segment()))).status());
  ::fcntl(raw_.wake_pipe(), F_SETFL, O_NONBLOCK);

  v1::QueryDevicesReply devices;
  RD_RETURN_IF_ERROR(raw_.Call(raw_.verbs(), &v1::VerbsService::Stub::QueryDevices, {}, &devices));
  if (devices.devices_size() == 0 || devices.devices(0).gids_size() == 0) {
    return absl::NotFoundError("no device with a GID");
  }
  const v1::Device& device = devices.devices(0);
  gid_ = device.gids(0).raw();
  gid_index_ = device.gids(0).index();

  v1::AllocPdRequest alloc;
  alloc.set_device_index(device.index());
  v1::AllocPdReply pd;
  RD_RETURN_IF_ERROR(raw_.Call(raw_.verbs(), &v1::VerbsService::Stub::AllocPd, alloc, &pd));
  pd_ = pd.pd();

  v1::CreatePoolRequest create_pool;
  create_pool.set_size_bytes(kPoolBytes);
  v1::CreatePoolReply pool;
  RD_RETURN_IF_ERROR(
      raw_.Call(raw_.memory(), &v1::MemoryService::Stub::CreatePool, create_pool, &pool));
  RD_ASSIGN_OR_RETURN(UniqueFd pool_fd, raw_.TakeDescriptor(pool.descriptor_tag()));
  RD_ASSIGN_OR_RETURN(const std::span<std::byte> pool_bytes, Map(std::move(pool_fd)));
  pool_ = pool_bytes.data();
  v1::RegisterRegionRequest registration;
  registration.set_pd(pd_);
  registration.set_pool(pool.pool());
  registration.set_length_bytes(kPoolBytes);
  registration.set_iova(kIova);
  registration.set_access(kAllAccess);
  v1::RegisterRegionReply region;
  RD_RETURN_IF_ERROR(
      raw_.Call(raw_.memory(), &v1::MemoryService::Stub::RegisterRegion, registration, &region));
  lkey_ = region.lkey();
  rkey_ = region.rkey();

  v1::CreateCompletionChannelReply completions;
  RD_RETURN_IF_ERROR(
      raw_.Call(raw_.verbs(), &v1::VerbsService::Stub::CreateCompletionChannel, {}, &completions));
  RD_ASSIGN_OR_RETURN(UniqueFd completions_fd, raw_.TakeDescriptor(completions.descriptor_tag()));
  channels_.push_back(std::move(completions_fd));
  v1::CreateEventChannelReply events;
  RD_RETURN_IF_ERROR(raw_.Call(raw_.cm(), &v1::CmService::Stub::CreateEventChannel, {}, &events));
  RD_ASSIGN_OR_RETURN(UniqueFd events_fd, raw_.TakeDescriptor(events.descriptor_tag()));
  channels_.push_back(std::move(events_fd));

  v1::CreateCqRequest create_cq;
  create_cq.set_device_index(device.index());
  create_cq.set_depth(4 * kDepth);
  create_cq.set_channel(completions.channel());
  v1::CreateCqReply cq;
  RD_RETURN_IF_ERROR(raw_.Call(raw_.verbs(), &v1::VerbsService::Stub::CreateCq, create_cq, &cq));
  cq_ = cq.cq();
  RD_ASSIGN_OR_RETURN(cq_queue_, Locate(cq.ring()));
  return MakeQps();
}

absl::StatusOr<HostileClient::Queue> HostileClient::Locate(const v1::QueueLocation& location) {
  if (!arenas_.contains(location.arena())) {
    RD_ASSIGN_OR_RETURN(UniqueFd fd, raw_.TakeDescriptor(location.descriptor_tag()));
    RD_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, Map(std::move(fd)));
    arenas_[location.arena()] = bytes.data();
  }
  return Queue{arenas_[location.arena()] + location.offset_bytes(), location.slot_count()};
}

absl::Status HostileClient::MakeQps() {
  for (Qp& qp : qps_) {
    RD_ASSIGN_OR_RETURN(qp, MakeQp());
  }
  RD_RETURN_IF_ERROR(ConnectQp(qps_[0], qps_[1]));
  return ConnectQp(qps_[1], qps_[0]);
}

absl::StatusOr<HostileClient::Qp> HostileClient::MakeQp() {
  v1::CreateQpRequest request;
  request.set_pd(pd_);
  request.set_qp_type(kRc);
  request.set_send_cq(cq_);
  request.set_recv_cq(cq_);
  request.mutable_cap()->set_max_send_wr(kDepth);
  request.mutable_cap()->set_max_recv_wr(kDepth);
  request.mutable_cap()->set_max_send_sge(4);
  request.mutable_cap()->set_max_recv_sge(4);
  v1::CreateQpReply reply;
  RD_RETURN_IF_ERROR(raw_.Call(raw_.verbs(), &v1::VerbsService::Stub::CreateQp, request, &reply));
  Qp qp;
  qp.handle = reply.qp();
  qp.qpn = reply.qpn();
  qp.doorbell_index = reply.doorbell_index();
  RD_ASSIGN_OR_RETURN(qp.send, Locate(reply.send_ring()));
  RD_ASSIGN_OR_RETURN(qp.recv, Locate(reply.recv_ring()));
  return qp;
}

absl::Status HostileClient::ConnectQp(const Qp& from, const Qp& to) {
  v1::ModifyQpRequest request;
  request.set_qp(from.handle);
  v1::QpAttr& attr = *request.mutable_attr();
  attr.set_access_flags(kAllAccess);
  attr.set_port_num(1);
  attr.set_path_mtu(kPathMtu1024);
  attr.set_dest_qpn(to.qpn);
  attr.set_rq_psn(kPsn);
  attr.set_sq_psn(kPsn);
  attr.set_max_rd_atomic(4);
  attr.set_max_dest_rd_atomic(4);
  attr.set_min_rnr_timer(1);
  attr.set_timeout(10);
  attr.set_retry_count(1);
  attr.set_rnr_retry(1);
  attr.mutable_ah()->set_dest_gid(gid_);
  attr.mutable_ah()->set_sgid_index(gid_index_);
  attr.mutable_ah()->set_hop_limit(64);
  for (const auto& [state, mask] :
       {std::pair{kInit, kMaskInit}, {kRtr, kMaskRtr}, {kRts, kMaskRts}}) {
    attr.set_qp_state(state);
    request.set_attr_mask(mask);
    v1::ModifyQpReply reply;
    RD_RETURN_IF_ERROR(raw_.Call(raw_.verbs(), &v1::VerbsService::Stub::ModifyQp, request, &reply));
  }
  return absl::OkStatus();
}

bool HostileClient::Recover() {
  for (const Qp& qp : qps_) {
    v1::DestroyQpRequest request;
    request.set_qp(qp.handle);
    v1::DestroyQpReply reply;
    // It may be gone already.
    (void)raw_.Call(raw_.verbs(), &v1::VerbsService::Stub::DestroyQp, request, &reply);
  }
  return MakeQps().ok();
}

bool HostileClient::HungUp() const {
  pollfd poll{raw_.socket(), POLLIN, 0};
  return ::poll(&poll, 1, 0) == 1 && (poll.revents & (POLLHUP | POLLERR)) != 0;
}

shm::ControlSegment& HostileClient::control() {
  return *reinterpret_cast<shm::ControlSegment*>(mappings_[0].bytes().data());
}

void HostileClient::Scribble() {
  switch (random_() % 8) {
    case 0:
      return RandomBytes();
    case 1:
      return WildIndices();
    case 2:
      return AllDoorbells();
    case 3:
      return FillWakePipe();
    default:
      return PlausibleWork();
  }
}

// Eight bytes here and there, anywhere.
void HostileClient::RandomBytes() {
  for (int i = 0; i < 1000; ++i) {
    const std::span<std::byte> bytes = mappings_[random_() % mappings_.size()].bytes();
    const uint64_t word = Interesting();
    // Mostly at the front, where headers are.
    const size_t range = random_() % 2 == 0 ? std::min<size_t>(bytes.size(), 65536) : bytes.size();
    std::memcpy(bytes.data() + random_() % (range / 8) * 8, &word, sizeof(word));
  }
  AllDoorbells();
}

// Numbers at which something could break.
uint64_t HostileClient::Interesting() {
  switch (random_() % 8) {
    case 0:
      return 0;
    case 1:
      return ~uint64_t{0};
    case 2:
      return uint64_t{1} << random_() % 64;
    case 3:
      return (uint64_t{1} << random_() % 64) - 1;
    case 4:
      return kIova + random_() % (2 * kPoolBytes) - kPoolBytes / 2;
    case 5:
      return random_() % 256;
    default:
      return random_();
  }
}

// Work that looks nearly right, so that it gets far: good keys and addresses beside bad ones, and a
// tail that moves a little or a lot.
void HostileClient::PlausibleWork() {
  const Qp& qp = qps_[random_() % 2];
  const bool receive = random_() % 3 == 0;
  const Queue& queue = receive ? qp.recv : qp.send;
  auto* header = reinterpret_cast<shm::WorkQueueHeader*>(queue.data);
  auto* slots = reinterpret_cast<shm::WorkSlot*>(queue.data + sizeof(shm::WorkQueueHeader));
  const uint32_t tail = header->tail.load();
  const uint32_t count = static_cast<uint32_t>(random_() % 8);
  for (uint32_t i = 0; i < count; ++i) {
    shm::WorkSlot slot{};
    slot.wr_id = random_();
    slot.opcode = static_cast<uint8_t>(random_() % (random_() % 4 == 0 ? 256 : 7));
    slot.flags = static_cast<uint8_t>(random_() % (random_() % 4 == 0 ? 256 : 16));
    slot.num_sge = static_cast<uint8_t>(random_() % (random_() % 4 == 0 ? 256 : 5));
    slot.extra_slots = static_cast<uint8_t>(random_() % 8 == 0 ? random_() % 256 : 0);
    slot.imm_be = static_cast<uint32_t>(random_());
    slot.remote_addr = Interesting();
    slot.rkey = random_() % 4 == 0 ? static_cast<uint32_t>(random_()) : rkey_;
    slot.inline_bytes = static_cast<uint32_t>(random_() % 4 == 0 ? Interesting() : random_() % 64);
    for (shm::WorkSge& sge : slot.sges) {
      sge.addr = random_() % 4 == 0 ? Interesting() : kIova + random_() % kPoolBytes;
      sge.length_bytes =
          static_cast<uint32_t>(random_() % 4 == 0 ? Interesting() : random_() % 65536);
      sge.lkey = random_() % 8 == 0 ? static_cast<uint32_t>(random_()) : lkey_;
    }
    slots[(tail + i) % queue.slot_count] = slot;
  }
  header->tail.store(tail + count);
  shm::RingDoorbell(control(), qp.doorbell_index);
  // Time of check, time of use: what was posted changes while the engine may read it.
  if (random_() % 2 == 0 && count > 0) {
    shm::WorkSlot& slot = slots[(tail + random_() % count) % queue.slot_count];
    slot.sges[0].length_bytes = static_cast<uint32_t>(random_());
    slot.num_sge = static_cast<uint8_t>(random_());
    slot.extra_slots = static_cast<uint8_t>(random_());
  }
  const char wake = 1;
  (void)!::write(raw_.wake_pipe(), &wake, 1);
  // Mostly play along with completions, so that the queue does not overrun at once.
  auto* cq = reinterpret_cast<shm::CqHeader*>(cq_queue_.data);
  if (random_() % 16 != 0) cq->head.store(cq->tail.load());
  cq->armed.store(static_cast<uint32_t>(random_() % 4));
}

void HostileClient::WildIndices() {
  for (const Qp& qp : qps_) {
    for (const Queue& queue : {qp.send, qp.recv}) {
      auto* header = reinterpret_cast<shm::WorkQueueHeader*>(queue.data);
      if (random_() % 2 == 0) header->tail.store(static_cast<uint32_t>(Interesting()));
      if (random_() % 2 == 0) header->head.store(static_cast<uint32_t>(Interesting()));
    }
  }
  auto* cq = reinterpret_cast<shm::CqHeader*>(cq_queue_.data);
  if (random_() % 2 == 0) cq->head.store(static_cast<uint32_t>(Interesting()));
  if (random_() % 2 == 0) cq->tail.store(static_cast<uint32_t>(Interesting()));
  AllDoorbells();
}

uint64_t HostileClient::BreakSendQueue() {
  auto* header = reinterpret_cast<shm::WorkQueueHeader*>(qps_[0].send.data);
  header->tail.store(header->head.load() + 2 * qps_[0].send.slot_count + 1);
  AllDoorbells();
  return qps_[0].handle;
}

void HostileClient::AllDoorbells() {
  for (auto& word : control().words) word.store(~uint64_t{0});
  for (auto& word : control().summary) word.store(~uint64_t{0});
  const char wake = 1;
  (void)!::write(raw_.wake_pipe(), &wake, 1);
}

void HostileClient::FillWakePipe() {
  const std::array<char, 4096> junk{};
  for (int i = 0; i < 64; ++i) {
    if (::write(raw_.wake_pipe(), junk.data(), junk.size()) < 0) return;
  }
}

}  // namespace rdmad::testing
