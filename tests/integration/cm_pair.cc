#include "tests/integration/cm_pair.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/status_macros.h"
#include "tests/integration/testbed.h"
#include "tests/support/slow.h"

namespace rdmad::testing {
namespace {

constexpr absl::Duration kResolveTimeout = absl::Seconds(2);

absl::StatusOr<CompletionQueue> MakeCq(const Client& client, uint32_t device_index,
                                       const QpCap& cap, const CompletionChannel* channel,
                                       uint32_t comp_vector) {
  return CompletionQueue::Create(client, device_index, cap.max_send_wr + cap.max_recv_wr, channel,
                                 nullptr, comp_vector);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CmEvent>> ExpectEvent(EventChannel& channel, CmEventType type,
                                                     absl::Duration timeout) {
  absl::StatusOr<std::unique_ptr<CmEvent>> event = channel.GetEvent(Slow(timeout));
  if (!event.ok()) {
    return absl::Status(event.status().code(), absl::StrCat("waiting for ", EventString(type), ": ",
                                                            event.status().ToString()));
  }
  if ((*event)->type() != type) {
    return absl::InternalError(absl::StrCat(EventString((*event)->type()), " status ",
                                            (*event)->status(), " instead of ", EventString(type)));
  }
  return event;
}

absl::StatusOr<ListeningId> ListenOn(const Client& client, const std::string& address) {
  ListeningId result;
  RD_ASSIGN_OR_RETURN(result.channel, EventChannel::Create(client));
  RD_ASSIGN_OR_RETURN(result.id, CmId::Create(client, result.channel.get()));
  RD_ASSIGN_OR_RETURN(const Address local, Address::Parse(WithPort(address, 0)));
  RD_RETURN_IF_ERROR(result.id->BindAddr(local));
  RD_RETURN_IF_ERROR(result.id->Listen());
  result.address = result.id->local_addr();
  return result;
}

absl::StatusOr<ActiveId> Resolve(const Client& client, const Address& peer) {
  ActiveId result;
  RD_ASSIGN_OR_RETURN(result.channel, EventChannel::Create(client));
  RD_ASSIGN_OR_RETURN(result.id, CmId::Create(client, result.channel.get()));
  RD_RETURN_IF_ERROR(result.id->ResolveAddr(Address(), peer, kResolveTimeout));
  RD_RETURN_IF_ERROR(ExpectEvent(*result.channel, CmEventType::kAddrResolved).status());
  RD_RETURN_IF_ERROR(result.id->ResolveRoute(kResolveTimeout));
  RD_RETURN_IF_ERROR(ExpectEvent(*result.channel, CmEventType::kRouteResolved).status());
  return result;
}

absl::StatusOr<QpPair> ConnectQps(const Client& from, const Client& to, const std::string& address,
                                  const QpPairOptions& options) {
  QpPair pair;
  RD_ASSIGN_OR_RETURN(pair.listener, ListenOn(to, address));
  RD_ASSIGN_OR_RETURN(pair.active, Resolve(from, pair.listener.address));
  RD_ASSIGN_OR_RETURN(pair.active_cq,
                      MakeCq(from, pair.active.id->device_index().value_or(0), options.active_cap,
                             options.active_channel, options.active_vector));
  RD_RETURN_IF_ERROR(pair.active.id->CreateQp(
      nullptr, {.send_cq = pair.active_cq, .recv_cq = pair.active_cq, .cap = options.active_cap}));
  RD_RETURN_IF_ERROR(pair.active.id->Connect(options.active_param));
  RD_ASSIGN_OR_RETURN(auto request,
                      ExpectEvent(*pair.listener.channel, CmEventType::kConnectRequest));
  pair.passive = request->TakeId();
  request.reset();
  RD_ASSIGN_OR_RETURN(pair.passive_cq,
                      MakeCq(to, pair.passive->device_index().value_or(0), options.passive_cap,
                             options.passive_channel, options.passive_vector));
  RD_RETURN_IF_ERROR(pair.passive->CreateQp(
      nullptr,
      {.send_cq = pair.passive_cq, .recv_cq = pair.passive_cq, .cap = options.passive_cap}));
  RD_RETURN_IF_ERROR(pair.passive->Accept(options.passive_param));
  RD_RETURN_IF_ERROR(ExpectEvent(*pair.active.channel, CmEventType::kEstablished).status());
  RD_RETURN_IF_ERROR(ExpectEvent(*pair.listener.channel, CmEventType::kEstablished).status());
  return pair;
}

absl::StatusOr<Wc> WaitForWc(CompletionQueue& cq, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + Slow(timeout);
  while (true) {
    Wc wc;
    if (cq.Poll({&wc, 1}) == 1) return wc;
    if (absl::Now() > deadline) return absl::DeadlineExceededError("no completion came");
  }
}

}  // namespace rdmad::testing
