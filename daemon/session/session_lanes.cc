// The engines of a session: opened as completion vectors are named, and told of what is for all.
#include <fcntl.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/session/pipe.h"
#include "daemon/session/session.h"
#include "proto/shm/doorbell.h"

namespace rdmad::session {

std::vector<uint32_t> Session::engine_indices() const {
  std::vector<uint32_t> indices = {engine_index()};
  for (size_t vector = 1; vector < lanes_.size(); ++vector) {
    if (lanes_[vector] != nullptr) indices.push_back(lanes_[vector]->engine->index());
  }
  return indices;
}

absl::StatusOr<Lane*> Session::OpenLane(uint32_t comp_vector, std::function<void()> then) {
  auto lane = std::make_unique<Lane>();
  lane->comp_vector = comp_vector;
  lane->engine = environment_.engines[comp_vector];
  memory::SegmentOptions options;
  options.name = absl::StrCat("rdmad-control-", identity_.id, "-", comp_vector);
  options.size_bytes = sizeof(shm::ControlSegment);
  options.header = shm::SegmentKind::kControl;
  RD_ASSIGN_OR_RETURN(lane->control_segment, memory::Segment::Create(options));
  RD_ASSIGN_OR_RETURN(Pipe wake, MakePipe());
  lane->wake_pipe = std::move(wake.write_end);
  lane->token = EventToken(environment_.router, this, kNoHandle);
  engine::SessionPortInit init;
  init.control = reinterpret_cast<shm::ControlSegment*>(lane->control_segment.data());
  init.wake_fd = std::move(wake.read_end);
  init.session_token = lane->token.value();
  lane->port = lane->engine->CreateSessionPort(std::move(init));
  Lane* const opened = lane.get();
  lanes_[comp_vector] = std::move(lane);
  Activate(*opened, {opened->port.get()}, std::move(then));
  return opened;
}

absl::StatusOr<Lane*> Session::LaneOf(const char* operation, uint32_t comp_vector) {
  if (comp_vector >= lanes_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(operation, ": comp_vector=", comp_vector,
                                                   ": allowed are 0 to ", lanes_.size() - 1,
                                                   ", one for each engine of the daemon"));
  }
  if (lanes_[comp_vector] != nullptr) return lanes_[comp_vector].get();
  return OpenLane(comp_vector, nullptr);
}

absl::Status Session::DeliverLane(Lane& lane, const std::function<v1::EngineLane*()>& message) {
  // Whoever is answered first carries the descriptors, not whoever opened the lane.
  if (lane.delivered) return absl::OkStatus();
  v1::EngineLane told;
  told.set_comp_vector(lane.comp_vector);
  told.set_engine_index(lane.engine->index());
  told.set_control_segment_tag(NextDescriptorTag());
  told.set_control_segment_bytes(lane.control_segment.size_bytes());
  told.set_engine_page_tag(NextDescriptorTag());
  told.set_engine_page_bytes(lane.engine->engine_page_bytes());
  told.set_wake_pipe_tag(NextDescriptorTag());
  RD_RETURN_IF_ERROR(sender_->SendDescriptor(
      told.control_segment_tag(), v1::DESCRIPTOR_KIND_CONTROL_SEGMENT, lane.control_segment.fd()));
  RD_RETURN_IF_ERROR(sender_->SendDescriptor(
      told.engine_page_tag(), v1::DESCRIPTOR_KIND_ENGINE_PAGE, lane.engine->engine_page_fd()));
  RD_RETURN_IF_ERROR(sender_->SendDescriptor(told.wake_pipe_tag(), v1::DESCRIPTOR_KIND_WAKE_PIPE,
                                             lane.wake_pipe.get()));
  lane.wake_pipe = UniqueFd();
  lane.delivered = true;
  *message() = told;
  return absl::OkStatus();
}

absl::StatusOr<device::Context*> Session::ContextOn(Lane& lane, uint32_t device_index) {
  RD_ASSIGN_OR_RETURN(device::Device * device, FindDevice(device_index));
  if (const auto open = lane.contexts.find(device_index); open != lane.contexts.end()) {
    return open->second.get();
  }
  std::unique_ptr<device::Context> context;
  const bool is_first = &lane == &first_lane();
  if (is_first) {
    RD_ASSIGN_OR_RETURN(context, device->Open(lane.engine->index()));
  } else {
    RD_ASSIGN_OR_RETURN(device::Context * first, ContextOn(device_index));
    RD_ASSIGN_OR_RETURN(context, first->Share(lane.engine->index()));
  }
  device::Context* const made = context.get();
  lane.contexts.emplace(device_index, std::move(context));
  // The engine knows it before whatever is made from it: commands are executed in order.
  Activate(lane, {made}, nullptr);
  if (!is_first) FillLane(lane, device_index, *made);
  return made;
}

// What is prepared only now joins all lanes when that is over; what is retiring has nothing to do
// with lanes that open now.
void Session::FillLane(Lane& lane, uint32_t device_index, device::Context& context) {
  const auto wanted = [device_index](const auto& object) {
    return object.device_index == device_index &&
           (object.phase == Phase::kMaking || object.phase == Phase::kLive);
  };
  const auto fill = [&](auto& table) {
    table.ForEach([&](Handle, auto& object) {
      if (!wanted(object)) return;
      const size_t before = object.parts.objects().size();
      AddParts(&object, lane, context);
      for (size_t i = before; i < object.parts.objects().size(); ++i) {
        Command(&engine::EngineProxy::Activate, {object.parts.objects()[i]}, nullptr);
      }
    });
  };
  fill(regions_);
  fill(mws_);
  fill(ahs_);
}

void Session::ForEachOtherLane(uint32_t device_index,
                               const std::function<void(Lane&, device::Context&)>& visit) const {
  for (size_t vector = 1; vector < lanes_.size(); ++vector) {
    if (lanes_[vector] == nullptr) continue;
    const auto open = lanes_[vector]->contexts.find(device_index);
    if (open != lanes_[vector]->contexts.end()) visit(*lanes_[vector], *open->second);
  }
}

void Session::AddParts(RegionObject* object, Lane& lane, device::Context& context) {
  object->parts.Add(lane, context.PartOf(*object->mr));
}

void Session::AddParts(MwObject* object, Lane& lane, device::Context& context) {
  object->parts.Add(lane, context.PartOf(*object->mw));
}

void Session::AddParts(AhObject* object, Lane& lane, device::Context& context) {
  object->parts.Add(lane, context.PartOf(*object->ah));
  engine::AhPortInit init;
  init.session = lane.port.get();
  init.ah = object->ah.get();
  init.pd = object->pd;
  init.slot_handle = object->slot_handle.get();
  object->parts.Add(lane, lane.engine->CreateAhPort(init));
}

absl::StatusOr<engine::ChannelPort*> Session::ChannelPortIn(Lane& lane, ChannelObject* channel) {
  std::unique_ptr<engine::ChannelPort>& port = channel->ports[lane.comp_vector];
  if (port != nullptr) return port.get();
  engine::ChannelPortInit init;
  init.session = lane.port.get();
  init.write_fd = UniqueFd(fcntl(channel->write_fd, F_DUPFD_CLOEXEC, 0));
  if (!init.write_fd.valid()) {
    channel->ports.erase(lane.comp_vector);
    return absl::ErrnoToStatus(errno, "completion channel: fcntl");
  }
  port = lane.engine->CreateChannelPort(std::move(init));
  Activate(lane, {port.get()}, nullptr);
  return port.get();
}

}  // namespace rdmad::session
