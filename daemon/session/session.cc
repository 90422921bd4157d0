#include "daemon/session/session.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/session/pipe.h"
#include "daemon/session/session_tables.h"

namespace rdmad::session {
namespace {

memory::ArenaSetOptions ArenaOptions(const SessionLimits& limits) {
  memory::ArenaSetOptions options;
  options.limit_bytes = limits.max_arena_bytes;
  return options;
}

std::vector<LaneObject> In(Lane& lane, std::initializer_list<device::EngineObject*> objects) {
  std::vector<LaneObject> all;
  for (device::EngineObject* object : objects) all.push_back({&lane, object});
  return all;
}

}  // namespace

Session::Session(const SessionEnvironment& environment, SessionIdentity identity,
                 const SessionLimits& limits, DescriptorSender* sender)
    : environment_(environment),
      identity_(std::move(identity)),
      sender_(sender),
      slow_queue_(environment.host),
      quota_(limits, environment.user_quota),
      arenas_(ArenaOptions(limits)),
      lanes_(environment.engines.size()) {}

Session::~Session() {
  RD_CHECK(state_ == State::kNew || state_ == State::kClosed, "a session is closed before it goes");
}

absl::StatusOr<AttachGift> Session::Open(std::function<void(absl::Status)> done) {
  RD_CHECK(state_ == State::kNew);
  RD_ASSIGN_OR_RETURN(Pipe async, MakePipe());
  const auto opened = [this, done = std::move(done)] {
    if (state_ != State::kOpening) return done(absl::CancelledError("the session has ended"));
    state_ = State::kOpen;
    done(absl::OkStatus());
  };
  RD_ASSIGN_OR_RETURN(Lane * lane, OpenLane(0, opened));
  async_channel_ = std::make_unique<AsyncChannel>(
      std::move(async.write_end), environment_.host,
      [this] { environment_.host->EndSession(*this, "does not read its async channel"); });

  AttachGift gift;
  gift.control_segment = lane->control_segment.fd();
  gift.control_segment_bytes = lane->control_segment.size_bytes();
  gift.engine_page = lane->engine->engine_page_fd();
  gift.engine_index = lane->engine->index();
  gift.engine_page_bytes = lane->engine->engine_page_bytes();
  gift.wake_pipe = std::move(lane->wake_pipe);
  gift.async_channel = std::move(async.read_end);
  lane->delivered = true;

  // The engine answers by way of the loop.
  state_ = State::kOpening;
  opened_at_ = environment_.clock();
  return gift;
}

void Session::Close(std::function<void()> closed) {
  if (state_ >= State::kClosing) return;
  state_ = State::kClosing;
  closed_ = std::move(closed);
  slow_queue_.Close();
  // Keeps FinishIfQuiet() from finishing half-way, should the engine answer from inside
  // Deactivate().
  ++commands_in_flight_;

  // The peers hear first: destroying an id sends its DREQ or REJ.
  cm_ids_.ForEach([this](Handle handle, CmIdObject&) { DropCmId(handle); });
  event_channels_.ForEach(
      [this](Handle handle, EventChannelObject&) { event_channels_.Remove(handle); });
  multicasts_.ForEach(
      [this](Handle handle, MulticastObject&) { RetireMulticast(handle, nullptr); });
  // Before the QPs and regions that they are bound to, which would have to look for them.
  mws_.ForEach([this](Handle handle, MwObject&) { RetireMw(handle, nullptr); });
  qps_.ForEach([this](Handle handle, QpObject&) { RetireQp(handle, nullptr); });
  srqs_.ForEach([this](Handle handle, SrqObject&) { RetireSrq(handle, nullptr); });
  ahs_.ForEach([this](Handle handle, AhObject&) { RetireAh(handle, nullptr); });
  cqs_.ForEach([this](Handle handle, CqObject&) { RetireCq(handle, nullptr); });
  channels_.ForEach([this](Handle handle, ChannelObject&) { RetireChannel(handle, nullptr); });
  regions_.ForEach([this](Handle handle, RegionObject&) { RetireRegion(handle, nullptr); });
  // Calls do not find them any more; they go in RetireBase().
  pds_.ForEach([this](Handle, PdObject& pd) { BeginRetiring(pd, nullptr); });

  --commands_in_flight_;
  FinishIfQuiet();
}

void Session::RetireBase() {
  base_retired_ = true;
  ++commands_in_flight_;
  pds_.ForEach([this](Handle handle, const PdObject& pd) {
    Deactivate(first_lane(), {pd.pd.get()}, [this, handle] { Bury(pds_, handle); });
  });
  for (const auto& lane : lanes_) {
    if (lane == nullptr) continue;
    for (const auto& [index, context] : lane->contexts) Deactivate(*lane, {context.get()}, nullptr);
    Deactivate(*lane, {lane->port.get()}, nullptr);
  }
  --commands_in_flight_;
  FinishIfQuiet();
}

// All engine objects are gone when their answers have come; what is left is memory.
void Session::FinishIfQuiet() {
  if (state_ != State::kClosing || commands_in_flight_ != 0) return;
  if (!base_retired_) return RetireBase();
  RD_CHECK(multicasts_.count() == 0 && qps_.count() == 0 && srqs_.count() == 0 &&
               ahs_.count() == 0 && mws_.count() == 0 && cqs_.count() == 0 &&
               channels_.count() == 0 && regions_.count() == 0 && pds_.count() == 0,
           "the engine has answered everything");
  bool pool_left = false;
  pools_.ForEach([&](Handle handle, PoolObject& pool) {
    pool_left = true;
    if (BeginRetiring(pool, nullptr)) FreePool(handle, nullptr);
  });
  // FreePool() works elsewhere and its answer leads here again.
  if (pool_left && pools_.count() != 0) return;

  state_ = State::kClosed;
  // The first lane last: the contexts of the others share its own.
  while (!lanes_.empty()) lanes_.pop_back();
  async_channel_.reset();
  sender_ = nullptr;
  // Last: it may destroy this.
  std::function<void()> closed = std::move(closed_);
  if (closed) closed();
}

absl::Status Session::CheckOpen() const {
  if (state_ == State::kOpen) return absl::OkStatus();
  if (state_ == State::kOpening) return absl::UnavailableError("the session is not ready yet");
  return absl::CancelledError("the session has ended");
}

void Session::Activate(Lane& lane, Objects objects, std::function<void()> then) {
  Command(&engine::EngineProxy::Activate, In(lane, objects), std::move(then));
}

void Session::Deactivate(Lane& lane, Objects objects, std::function<void()> then) {
  Command(&engine::EngineProxy::Deactivate, In(lane, objects), std::move(then));
}

void Session::Activate(Objects objects, const LaneParts& parts, std::function<void()> then) {
  std::vector<LaneObject> all = In(first_lane(), objects);
  all.insert(all.end(), parts.objects().begin(), parts.objects().end());
  Command(&engine::EngineProxy::Activate, all, std::move(then));
}

void Session::Deactivate(Objects objects, const LaneParts& parts, std::function<void()> then) {
  std::vector<LaneObject> all = In(first_lane(), objects);
  all.insert(all.end(), parts.objects().rbegin(), parts.objects().rend());
  Command(&engine::EngineProxy::Deactivate, all, std::move(then));
}

void Session::Command(EngineCommand command, const std::vector<LaneObject>& objects,
                      std::function<void()> then) {
  const auto left = std::make_shared<size_t>(objects.size());
  const auto all_done = std::make_shared<std::function<void()>>(std::move(then));
  for (const LaneObject& one : objects) {
    ++commands_in_flight_;
    (one.lane->engine->*command)(*one.object, [this, left, all_done] {
      OnAnswer(--*left == 0 ? *all_done : nullptr);
    });
  }
}

void Session::OnAnswer(const std::function<void()>& then) {
  if (then) then();
  RD_CHECK(commands_in_flight_ > 0);
  --commands_in_flight_;
  FinishIfQuiet();
}

void Session::RunSlowly(std::function<void()> work, bool droppable, std::function<void()> then) {
  ++commands_in_flight_;
  slow_queue_.Run(std::move(work), droppable, [this, then = std::move(then)] { OnAnswer(then); });
}

void Session::Prepare(device::SlowObject& object, std::function<void(absl::Status)> then) {
  if (!object.slow()) return then(object.Prepare());
  auto prepared = std::make_shared<absl::Status>(absl::CancelledError("the session has ended"));
  RunSlowly([prepared, &object] { *prepared = object.Prepare(); }, true,
            [prepared, then = std::move(then)] { then(*prepared); });
}

bool Session::OnPrepared(Object& object, const absl::Status& prepared, const Done& done) {
  if (prepared.ok() && object.phase == Phase::kPreparing) {
    object.phase = Phase::kMaking;
    return true;
  }
  const absl::Status why =
      prepared.ok() ? absl::CancelledError("the session has ended") : prepared;
  BeginRetiring(object, [done, why] { done(why); });
  return false;
}

bool Session::BeginRetiring(Object& object, std::function<void()> on_gone) {
  if (on_gone) object.on_gone.push_back(std::move(on_gone));
  if (object.phase == Phase::kRetiring) return false;
  object.phase = Phase::kRetiring;
  return true;
}

void Session::OnCorrupt(const char* what) {
  environment_.host->EndSession(*this, absl::StrCat("corrupt shared memory: ", what));
}

void Session::OnDeviceRemoved(uint32_t device_index) {
  if (async_channel_ == nullptr) return;
  async_channel_->Send(
      {static_cast<uint32_t>(device::AsyncEventType::kDeviceFatal), 0, device_index});
}

void Session::OnCqOverrun(Handle cq) {
  CqObject* const object = cqs_.Find(cq);
  if (object == nullptr) return;
  object->overrun = true;
  if (async_channel_ == nullptr) return;
  async_channel_->Send({static_cast<uint32_t>(device::AsyncEventType::kCqErr), 0, cq});
}

void Session::OnDeviceEvent(uint32_t device_index, device::AsyncEventType type) {
  if (async_channel_ == nullptr || !first_lane().contexts.contains(device_index)) return;
  async_channel_->Send({static_cast<uint32_t>(type), 0, device_index});
}

void Session::OnAsyncEvent(Handle object, device::AsyncEventType type) {
  const QpObject* qp = qps_.Find(object);
  if (async_channel_ == nullptr || (qp == nullptr && srqs_.Find(object) == nullptr)) return;
  async_channel_->Send({static_cast<uint32_t>(type), 0, object});
  if (qp == nullptr) return;
  if (const CmIdObject* id = cm_ids_.Find(qp->cm_id)) id->id->OnQpAsyncEvent(type);
}

void Session::GetSession(const v1::GetSessionRequest&, v1::GetSessionReply* reply, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  reply->set_session_id(identity_.id);
  reply->set_name(identity_.name);
  const SessionLimits& limits = quota_.limits();
  v1::SessionLimits* out = reply->mutable_limits();
  out->set_max_qps(limits.max_qps);
  out->set_max_cqs(limits.max_cqs);
  out->set_max_regions(limits.max_regions);
  out->set_max_pools(limits.max_pools);
  out->set_max_pool_bytes(limits.max_pool_bytes);
  out->set_max_region_bytes(limits.max_region_bytes);
  out->set_max_cm_ids(limits.max_cm_ids);
  out->set_max_pending_requests(limits.max_pending_requests);
  out->set_max_channels(limits.max_channels);
  out->set_max_arena_bytes(limits.max_arena_bytes);
  out->set_max_srqs(limits.max_srqs);
  out->set_max_ahs(limits.max_ahs);
  out->set_max_mws(limits.max_mws);
  out->set_max_multicasts(limits.max_multicasts);
  done(absl::OkStatus());
}

}  // namespace rdmad::session
