// verbs.proto: devices, PDs, completion channels, CQs. QPs are in session_qp.cc.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/memory/queue_layout.h"
#include "daemon/session/convert.h"
#include "daemon/session/pipe.h"
#include "daemon/session/session.h"
#include "daemon/session/session_tables.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::session {

absl::StatusOr<device::Device*> Session::FindDevice(uint32_t index) const {
  device::Device* device = environment_.devices->Find(index);
  if (device != nullptr) return device;
  return absl::NotFoundError(
      absl::StrCat("device_index=", index, ": no such device, or it was removed"));
}

void Session::QueryDevices(const v1::QueryDevicesRequest&, v1::QueryDevicesReply* reply,
                           Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  for (uint32_t index = 0; index < environment_.devices->end(); ++index) {
    const device::Device* device = environment_.devices->Find(index);
    if (device != nullptr) ToMessage(index, *device, reply->add_devices());
  }
  done(absl::OkStatus());
}

absl::StatusOr<Handle> Session::PreparePd(const v1::AllocPdRequest& request) {
  RD_RETURN_IF_ERROR(CheckOpen());
  RD_ASSIGN_OR_RETURN(device::Context * context, ContextOn(request.device_index()));
  auto object = std::make_unique<PdObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("alloc_pd", Resource::kPds));
  object->device_index = request.device_index();
  RD_ASSIGN_OR_RETURN(object->pd, context->AllocPd());
  return pds_.Insert(std::move(object));
}

void Session::AllocPd(const v1::AllocPdRequest& request, v1::AllocPdReply* reply, Done done) {
  absl::StatusOr<Handle> handle = PreparePd(request);
  if (!handle.ok()) return done(handle.status());
  Activate(first_lane(), {pds_.Find(*handle)->pd.get()},
           [this, handle = *handle, reply, done = std::move(done)] {
             if (MakeLive(pds_, handle, done) == nullptr) return;
             reply->set_pd(handle);
             done(absl::OkStatus());
           });
}

void Session::DeallocPd(const v1::DeallocPdRequest& request, v1::DeallocPdReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<PdObject*> pd = Live(pds_, request.pd());
  if (!pd.ok()) return done(pd.status());
  if (!(*pd)->users.empty()) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("dealloc_pd: ", HandleText(HandleKind::kPd, request.pd()), " is used by ",
                     (*pd)->users.Text())));
  }
  RetirePd(request.pd(), [done = std::move(done)] { done(absl::OkStatus()); });
}

void Session::RetirePd(Handle handle, std::function<void()> on_gone) {
  PdObject* pd = pds_.Find(handle);
  if (!BeginRetiring(*pd, std::move(on_gone))) return;
  Deactivate(first_lane(), {pd->pd.get()}, [this, handle] { Bury(pds_, handle); });
}

absl::StatusOr<Handle> Session::PrepareChannel(UniqueFd* read_end) {
  RD_RETURN_IF_ERROR(CheckOpen());
  auto object = std::make_unique<ChannelObject>();
  RD_ASSIGN_OR_RETURN(object->charge,
                      quota_.Take("create_completion_channel", Resource::kChannels));
  RD_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  *read_end = std::move(pipe.read_end);
  object->write_fd = pipe.write_end.get();
  engine::ChannelPortInit init;
  init.session = first_lane().port.get();
  init.write_fd = std::move(pipe.write_end);
  object->ports[0] = first_lane().engine->CreateChannelPort(std::move(init));
  return channels_.Insert(std::move(object));
}

void Session::CreateCompletionChannel(const v1::CreateCompletionChannelRequest&,
                                      v1::CreateCompletionChannelReply* reply, Done done) {
  auto read_end = std::make_shared<UniqueFd>();
  absl::StatusOr<Handle> handle = PrepareChannel(read_end.get());
  if (!handle.ok()) return done(handle.status());
  Activate(first_lane(), {channels_.Find(*handle)->ports.at(0).get()},
           [this, handle = *handle, read_end, reply, done = std::move(done)] {
             if (MakeLive(channels_, handle, done) == nullptr) return;
             const uint64_t tag = NextDescriptorTag();
             absl::Status sent = sender_->SendDescriptor(
                 tag, v1::DESCRIPTOR_KIND_COMPLETION_CHANNEL, read_end->get());
             if (!sent.ok()) return RetireChannel(handle, [done, sent] { done(sent); });
             reply->set_channel(handle);
             reply->set_descriptor_tag(tag);
             done(absl::OkStatus());
           });
}

void Session::DestroyCompletionChannel(const v1::DestroyCompletionChannelRequest& request,
                                       v1::DestroyCompletionChannelReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<ChannelObject*> channel = Live(channels_, request.channel());
  if (!channel.ok()) return done(channel.status());
  if (!(*channel)->users.empty()) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("destroy_completion_channel: ",
                     HandleText(HandleKind::kCompletionChannel, request.channel()), " is used by ",
                     (*channel)->users.Text())));
  }
  RetireChannel(request.channel(), [done = std::move(done)] { done(absl::OkStatus()); });
}

void Session::RetireChannel(Handle handle, std::function<void()> on_gone) {
  ChannelObject* channel = channels_.Find(handle);
  if (!BeginRetiring(*channel, std::move(on_gone))) return;
  std::vector<LaneObject> ports;
  for (const auto& [vector, port] : channel->ports) {
    ports.push_back({lanes_[vector].get(), port.get()});
  }
  Command(&engine::EngineProxy::Deactivate, ports, [this, handle] { Bury(channels_, handle); });
}

absl::StatusOr<RingHold> Session::AllocateRing(uint64_t bytes) {
  RD_ASSIGN_OR_RETURN(const memory::ArenaAllocation allocation, arenas_.Allocate(bytes));
  RingHold ring(&arenas_, allocation);
  RD_ASSIGN_OR_RETURN(Charge charge,
                      quota_.Take("allocate_queue", Resource::kArenaBytes, allocation.bytes));
  ring.Keep(std::move(charge));
  return ring;
}

absl::Status Session::Deliver(const RingHold& ring, uint32_t slot_count,
                              v1::QueueLocation* location) {
  const memory::ArenaAllocation& allocation = ring.get();
  // Whoever is answered first carries the descriptor, not whoever allocated first.
  if (!delivered_arenas_.contains(allocation.arena_id)) {
    const uint64_t tag = NextDescriptorTag();
    RD_RETURN_IF_ERROR(
        sender_->SendDescriptor(tag, v1::DESCRIPTOR_KIND_ARENA, allocation.arena_fd));
    delivered_arenas_.insert(allocation.arena_id);
    location->set_descriptor_tag(tag);
  }
  location->set_arena(allocation.arena_id);
  location->set_arena_bytes(allocation.arena_bytes);
  location->set_offset_bytes(allocation.offset);
  location->set_slot_count(slot_count);
  return absl::OkStatus();
}

absl::StatusOr<Handle> Session::PrepareCq(const v1::CreateCqRequest& request) {
  RD_RETURN_IF_ERROR(CheckOpen());
  auto object = std::make_unique<CqObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("create_cq", Resource::kCqs));
  CqObject* cq = object.get();
  // The engine's port wants to know the handle.
  RD_ASSIGN_OR_RETURN(const Handle handle, cqs_.Insert(std::move(object)));
  absl::Status filled = FillCq(request, handle, cq);
  if (filled.ok()) return handle;
  cqs_.Remove(handle);
  return filled;
}

absl::Status Session::FillCq(const v1::CreateCqRequest& request, Handle handle, CqObject* cq) {
  RD_ASSIGN_OR_RETURN(device::Device * device, FindDevice(request.device_index()));
  const uint32_t most = std::min(shm::kMaxCqDepth, device->attr().max_cqe);
  if (request.depth() == 0 || request.depth() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_cq: depth=", request.depth(), ": allowed are 1 to ", most));
  }
  RD_ASSIGN_OR_RETURN(cq->lane, LaneOf("create_cq", request.comp_vector()));
  engine::ChannelPort* channel_port = nullptr;
  if (request.channel() != kNoHandle) {
    RD_ASSIGN_OR_RETURN(ChannelObject * channel, Live(channels_, request.channel()));
    RD_ASSIGN_OR_RETURN(channel_port, ChannelPortIn(*cq->lane, channel));
    cq->channel_use = UseRef(channel->users, handle);
  }
  cq->device_index = request.device_index();
  cq->entries = memory::CqEntries(request.depth());
  RD_ASSIGN_OR_RETURN(cq->ring, AllocateRing(shm::CqBytes(cq->entries)));
  cq->token = EventToken(environment_.router, this, handle);
  engine::CqPortInit init;
  init.session = cq->lane->port.get();
  init.channel = channel_port;
  init.ring = cq->ring.get().addr;
  init.capacity = cq->entries;
  init.cq_handle = handle;
  init.cq_token = cq->token.value();
  cq->port = cq->lane->engine->CreateCqPort(init);
  RD_ASSIGN_OR_RETURN(device::Context * context, ContextOn(*cq->lane, request.device_index()));
  RD_ASSIGN_OR_RETURN(cq->cq, context->CreateCq(request.depth(), cq->port.get()));
  return absl::OkStatus();
}

void Session::CreateCq(const v1::CreateCqRequest& request, v1::CreateCqReply* reply, Done done) {
  absl::StatusOr<Handle> handle = PrepareCq(request);
  if (!handle.ok()) return done(handle.status());
  const CqObject* made = cqs_.Find(*handle);
  Activate(*made->lane, {made->port.get(), made->cq.get()},
           [this, handle = *handle, reply, done = std::move(done)] {
             const CqObject* cq = MakeLive(cqs_, handle, done);
             if (cq == nullptr) return;
             absl::Status sent = Deliver(cq->ring, cq->entries, reply->mutable_ring());
             if (sent.ok())
               sent = DeliverLane(*cq->lane, [reply] { return reply->mutable_lane(); });
             if (!sent.ok()) return RetireCq(handle, [done, sent] { done(sent); });
             reply->set_cq(handle);
             reply->set_depth(cq->entries);
             done(absl::OkStatus());
           });
}

void Session::DestroyCq(const v1::DestroyCqRequest& request, v1::DestroyCqReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<CqObject*> cq = Live(cqs_, request.cq());
  if (!cq.ok()) return done(cq.status());
  if (!(*cq)->users.empty()) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("destroy_cq: ", HandleText(HandleKind::kCq, request.cq()), " is used by ",
                     (*cq)->users.Text())));
  }
  RetireCq(request.cq(), [done = std::move(done)] { done(absl::OkStatus()); });
}

void Session::RetireCq(Handle handle, std::function<void()> on_gone) {
  CqObject* cq = cqs_.Find(handle);
  if (!BeginRetiring(*cq, std::move(on_gone))) return;
  Deactivate(*cq->lane, {cq->cq.get(), cq->port.get()}, [this, handle] { Bury(cqs_, handle); });
}

}  // namespace rdmad::session
