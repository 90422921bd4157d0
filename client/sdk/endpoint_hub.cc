#include "client/sdk/endpoint_hub.h"

#include <algorithm>
#include <utility>

#include "client/sdk/status_macros.h"

namespace rdmad::sdk {
namespace {

constexpr size_t kFirstSlabBytes = 1 << 20;
constexpr size_t kLargestSlabBytes = 16 << 20;

}  // namespace

std::shared_ptr<EndpointHub> EndpointHub::Of(const std::shared_ptr<Session>& session) {
  Session::HubSlot& slot = session->hub_slot();
  const std::lock_guard lock(slot.mutex);
  std::shared_ptr<EndpointHub> hub = slot.hub.lock();
  if (hub == nullptr) {
    hub = std::make_shared<EndpointHub>(session);
    slot.hub = hub;
  }
  return hub;
}

absl::StatusOr<EventChannel*> EndpointHub::Adopt(CmId& id) {
  const std::lock_guard lock(channels_mutex_);
  auto shared = std::find_if(channels_.begin(), channels_.end(),
                             [](const SharedChannel& candidate) { return candidate.ids < kMaxIdsPerChannel; });
  if (shared == channels_.end()) {
    SDK_ASSIGN_OR_RETURN(std::shared_ptr<EventChannelState> state, EventChannelState::Create(session_));
    state->pipe().SetInternal();
    channels_.push_front({std::make_unique<EventChannel>(std::move(state)), 0});
    shared = channels_.begin();
  }
  SDK_RETURN_IF_ERROR(id.Migrate(shared->channel.get()));
  ++shared->ids;
  return shared->channel.get();
}

void EndpointHub::Leave(EventChannel* channel) noexcept {
  const std::lock_guard lock(channels_mutex_);
  const auto shared = std::find_if(channels_.begin(), channels_.end(), [channel](const SharedChannel& candidate) {
    return candidate.channel.get() == channel;
  });
  if (shared != channels_.end()) --shared->ids;
}

void EndpointHub::Dispatch(EventChannel* channel, Deadline deadline) {
  while (true) {
    absl::StatusOr<std::unique_ptr<EventRecord>> record = channel->state()->GetEvent(deadline);
    if (!record.ok()) return;
    const CmEvent event(std::move(record).value());
    // The id cannot go before the event is acknowledged.
    if (event.id() != nullptr) static_cast<HubMember*>(event.id()->context())->OnCmEvent(event);
    deadline = Deadline::Immediate();
  }
}

absl::StatusOr<Buffer> EndpointHub::AllocateReceive(size_t size_bytes) {
  const std::lock_guard lock(slabs_mutex_);
  for (auto slab = slabs_.rbegin(); slab != slabs_.rend(); ++slab) {
    if (std::byte* data = (*slab)->TryAllocate(size_bytes); data != nullptr) {
      return Buffer(*slab, data, size_bytes, size_bytes);
    }
  }
  const size_t grown = slabs_.empty() ? kFirstSlabBytes : std::min(slabs_.back()->size_bytes() * 2, kLargestSlabBytes);
  PoolOptions options;
  options.name = "receives";
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<PoolMapping> slab,
                       PoolMapping::Create(session_, std::max(grown, SliceAllocator::Rounded(size_bytes)), options));
  slabs_.push_back(slab);
  std::byte* data = slab->TryAllocate(size_bytes);
  return Buffer(std::move(slab), data, size_bytes, size_bytes);
}

}  // namespace rdmad::sdk
