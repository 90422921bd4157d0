#include "client/sdk/shared_receive_queue.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/one_sge.h"
#include "client/sdk/status_errno.h"
#include "client/sdk/status_macros.h"

namespace rdmad {
namespace sdk {

SrqPlaces::SrqPlaces(uint32_t depth) : places_(depth) {
  for (uint32_t place = depth; place-- != 0; free_ = place) places_[place].next = free_;
}

uint32_t SrqPlaces::Take(uint64_t wr_id) noexcept {
  const uint32_t place = free_;
  if (place == kNone) return kNone;
  free_ = places_[place].next;
  places_[place] = {.wr_id = wr_id, .next = kNone, .previous = newest_, .taken = true};
  (newest_ == kNone ? oldest_ : places_[newest_].next) = place;
  newest_ = place;
  return place;
}

bool SrqPlaces::Free(uint64_t place, uint64_t* wr_id) noexcept {
  if (place >= places_.size() || !places_[place].taken) return false;
  const uint32_t index = static_cast<uint32_t>(place);
  Place& gone = places_[index];
  *wr_id = gone.wr_id;
  (gone.previous == kNone ? oldest_ : places_[gone.previous].next) = gone.next;
  (gone.next == kNone ? newest_ : places_[gone.next].previous) = gone.previous;
  gone = {.wr_id = 0, .next = free_, .previous = kNone, .taken = false};
  free_ = index;
  return true;
}

SrqState::SrqState(std::shared_ptr<PdState> pd, const v1::CreateSrqReply& reply, MappedQueue ring, const Lane& lane,
                   const SrqInit& init)
    : pd_(std::move(pd)),
      handle_(reply.srq()),
      max_wr_(reply.max_wr()),
      max_sge_(reply.max_sge()),
      context_(init.context),
      comp_vector_(init.comp_vector),
      lane_(&lane),
      doorbell_index_(reply.doorbell_index()),
      writer_(reinterpret_cast<shm::WorkQueueHeader*>(ring.data), ring.slot_count, {max_wr_, max_sge_, 0}),
      places_(writer_.depth()) {}

absl::StatusOr<std::shared_ptr<SrqState>> SrqState::Create(const std::shared_ptr<PdState>& pd, const SrqInit& init) {
  v1::CreateSrqRequest request;
  request.set_pd(pd->handle());
  request.set_max_wr(init.max_wr);
  request.set_max_sge(init.max_sge);
  request.set_limit(init.limit);
  request.set_comp_vector(init.comp_vector);
  SDK_ASSIGN_OR_RETURN(const v1::CreateSrqReply reply, pd->session()->Call(rpc::kCreateSrq, request));
  const absl::StatusOr<LaneQueue> queue =
      pd->session()->MapQueueInLane(reply, shm::WorkQueueBytes(reply.ring().slot_count()), init.comp_vector);
  if (!queue.ok()) {
    v1::DestroySrqRequest destroy;
    destroy.set_srq(reply.srq());
    pd->session()->Release(rpc::kDestroySrq, destroy).IgnoreError();
    return queue.status();
  }
  return std::shared_ptr<SrqState>(new SrqState(pd, reply, queue->ring, *queue->lane, init));
}

SrqState::~SrqState() { Destroy().IgnoreError(); }

absl::Status SrqState::Destroy() {
  const std::lock_guard lock(mutex_);
  if (destroyed_) return absl::OkStatus();
  if (const uint32_t users = users_.load(std::memory_order_relaxed); users != 0) {
    return StatusWithErrno(absl::StatusCode::kFailedPrecondition, EBUSY,
                           absl::StrCat("destroy_srq: srq=", handle_, " qps=", users, ": still in use"));
  }
  v1::DestroySrqRequest request;
  request.set_srq(handle_);
  SDK_RETURN_IF_ERROR(session()->Release(rpc::kDestroySrq, request));
  destroyed_ = true;
  return absl::OkStatus();
}

void SrqState::Attach(const Lane& lane, uint32_t comp_vector, uint32_t doorbell_index) noexcept {
  users_.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    if (lane_ == &lane && doorbell_index_ == doorbell_index) return;
    lane_ = &lane;
    doorbell_index_ = doorbell_index;
    comp_vector_.store(comp_vector, std::memory_order_relaxed);
  }
  // What was posted before rang where nobody listens any more.
  lane.Ring(doorbell_index);
}

absl::Status SrqState::PostRecv(std::span<const RecvWr> wrs, size_t* posted) noexcept {
  size_t count = 0;
  int error_number = 0;
  const Lane* lane = nullptr;
  uint32_t doorbell_index = 0;
  {
    const std::lock_guard lock(mutex_);
    if (posted != nullptr) *posted = 0;
    if (!session()->alive()) return session()->DeadError();
    if (destroyed_) return absl::FailedPreconditionError("post_srq_recv: SRQ was destroyed");
    for (const RecvWr& wr : wrs) {
      SgeArray sges;
      const uint32_t place = ConvertSges(wr.sges, &sges) ? places_.Take(wr.wr_id) : SrqPlaces::kNone;
      if (place == SrqPlaces::kNone) {
        error_number = wr.sges.size() > max_sge_ ? EINVAL : ENOMEM;
        break;
      }
      error_number = writer_.PostRecv(place, {sges.data(), wr.sges.size()});
      if (error_number != 0) {
        uint64_t wr_id;
        places_.Free(place, &wr_id);
        break;
      }
      ++count;
    }
    if (count != 0) writer_.Publish();
    lane = lane_;
    doorbell_index = doorbell_index_;
  }
  if (count != 0) lane->Ring(doorbell_index);
  if (posted != nullptr) *posted = count;
  if (error_number == 0) return absl::OkStatus();
  if (error_number == ENOMEM) {
    return absl::ResourceExhaustedError(
        absl::StrCat("post_srq_recv: srq=", handle_, ": queue full: depth=", writer_.depth()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("post_srq_recv: srq=", handle_, " sges=", wrs[count].sges.size(), " max_sge=", max_sge_));
}

bool SrqState::Retire(uint64_t* wr_id) noexcept {
  const std::lock_guard lock(mutex_);
  if (!places_.Free(*wr_id, wr_id)) return false;
  writer_.RetireOne();
  return true;
}

size_t SrqState::FlushInto(uint32_t qpn, std::span<Wc> out) noexcept {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (; count < out.size() && places_.oldest() != SrqPlaces::kNone; ++count) {
    out[count] = Wc{.wr_id = 0,
                    .status = WcStatus::kWrFlushErr,
                    .opcode = WcOpcode::kRecv,
                    .flags = 0,
                    .byte_len = 0,
                    .imm_be = 0,
                    .qpn = qpn,
                    .src_qpn = 0,
                    .vendor_err = 0,
                    .slid = 0,
                    .service_level = 0,
                    .dlid_path_bits = 0};
    places_.Free(places_.oldest(), &out[count].wr_id);
    writer_.RetireOne();
  }
  return count;
}

absl::Status SrqState::Modify(uint32_t limit) {
  v1::ModifySrqRequest request;
  request.set_srq(handle_);
  request.set_limit(limit);
  return session()->Call(rpc::kModifySrq, request).status();
}

absl::StatusOr<SrqAttr> SrqState::Query() {
  v1::QuerySrqRequest request;
  request.set_srq(handle_);
  SDK_ASSIGN_OR_RETURN(const v1::QuerySrqReply reply, session()->Call(rpc::kQuerySrq, request));
  return SrqAttr{.max_wr = reply.max_wr(), .max_sge = reply.max_sge(), .limit = reply.limit()};
}

}  // namespace sdk

absl::StatusOr<SharedReceiveQueue> SharedReceiveQueue::Create(const ProtectionDomain& pd, const SrqInit& init) {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::SrqState> state, sdk::SrqState::Create(pd.state(), init));
  return SharedReceiveQueue(std::move(state));
}

absl::Status SharedReceiveQueue::PostRecv(std::span<const RecvWr> wrs, size_t* posted) noexcept {
  return state_->PostRecv(wrs, posted);
}

absl::Status SharedReceiveQueue::PostRecv(uint64_t wr_id, void* addr, size_t length_bytes,
                                          const MemoryRegion* mr) noexcept {
  const sdk::OneSge one(addr, length_bytes, mr);
  return one.fits ? PostRecvv(wr_id, one.span()) : sdk::TooLong("post_srq_recv", length_bytes);
}

absl::Status SharedReceiveQueue::PostRecvv(uint64_t wr_id, std::span<const Sge> sges) noexcept {
  const RecvWr wr{wr_id, sges};
  return state_->PostRecv({&wr, 1}, nullptr);
}

absl::Status SharedReceiveQueue::Modify(uint32_t limit) { return state_->Modify(limit); }
absl::StatusOr<SrqAttr> SharedReceiveQueue::Query() const { return state_->Query(); }
uint32_t SharedReceiveQueue::max_wr() const noexcept { return state_->max_wr(); }
uint32_t SharedReceiveQueue::max_sge() const noexcept { return state_->max_sge(); }
uint64_t SharedReceiveQueue::handle() const noexcept { return state_->handle(); }
void* SharedReceiveQueue::context() const noexcept { return state_->context(); }
absl::Status SharedReceiveQueue::Destroy() { return state_->Destroy(); }

}  // namespace rdmad
