// The connection manager's way in: which connection a message belongs to, and what becomes of those
// that belong to none.
#include <memory>
#include <utility>

#include "daemon/device/soft/cm/cm_event.h"
#include "daemon/device/soft/cm/cm_request.h"
#include "daemon/device/soft/cm/soft_cm_endpoint.h"
#include "daemon/device/soft/cm/soft_connection_manager.h"

namespace rdmad::soft {
namespace {

using wire::CmMessage;
using wire::CmMessageKind;
using wire::CommId;
using wire::RejReason;

struct Ids {
  CommId sender;    // the sender's name for the connection; 0: none
  CommId receiver;  // ours, as the sender knows it
};

Ids IdsOf(const CmMessage& message) {
  return std::visit(
      [](const auto& m) -> Ids {
        if constexpr (requires { m.remote_comm_id; }) {
          return {m.local_comm_id, m.remote_comm_id};
        } else {
          return {};
        }
      },
      message);
}

// Whether a message with our id really comes from the peer of that connection: ids can be guessed
// or be out of date.
bool Fits(const CmConnection& connection, const Flow& flow, const CmMessage& message) {
  const CmFacts& facts = connection.facts();
  if (facts.flow.remote != flow.remote || facts.flow.local != flow.local) return false;
  if (const auto* dreq = std::get_if<wire::CmDreq>(&message)) {
    if (dreq->remote_qpn != facts.local_qpn) return false;
  }
  const CommId sender = IdsOf(message).sender;
  if (facts.remote_id == CommId() || sender == facts.remote_id) return true;
  // Who rejects a REQ has often made no id.
  return std::holds_alternative<wire::CmRej>(message) && sender == CommId();
}

}  // namespace

void SoftConnectionManager::OnMad(const Flow& flow, const Mad& mad) {
  wire::MadHeader header;
  CmMessage message;
  if (wire::ParseCmMessage(mad, &header, &message) != wire::MadDropReason::kNone) {
    ++counters_.mads_malformed;
    return;
  }
  Dispatch(flow, header.transaction_id, message);
}

// Mostly it says nothing new, or the QP was connected without the CM.
void SoftConnectionManager::OnFirstData(const ReceivedMad& word) {
  CmConnection* const connection = connections_.FindByRemoteQpn(word.flow.remote, word.src_qpn);
  if (connection == nullptr || connection->state() != CmState::kRepSent ||
      connection->facts().local_qpn != word.first_data_of) {
    return;
  }
  ++counters_.established_by_data;
  (void)connection->NotifyCommEstablished();  // fits the state
}

void SoftConnectionManager::Dispatch(const Flow& flow, uint64_t transaction_id,
                                     const CmMessage& message) {
  if (const auto* req = std::get_if<wire::CmReq>(&message)) {
    OnReq(flow, transaction_id, *req);
    return;
  }
  if (const auto* sidr_req = std::get_if<wire::CmSidrReq>(&message)) {
    OnSidrReq(flow, transaction_id, *sidr_req);
    return;
  }
  if (const auto* sidr_rep = std::get_if<wire::CmSidrRep>(&message)) {
    OnSidrRep(flow, *sidr_rep);
    return;
  }
  const Ids ids = IdsOf(message);
  CmConnection* connection = connections_.Find(ids.receiver);
  if (connection == nullptr && std::holds_alternative<wire::CmRej>(message)) {
    // A peer that gives up before it has heard of our id: it can only use its own.
    connection = connections_.FindPassive(flow.remote, ids.sender);
  }
  if (connection == nullptr || connection->state() == CmState::kClosed ||
      !Fits(*connection, flow, message)) {
    ++counters_.mads_unmatched;
    AnswerUnmatched(flow, transaction_id, message);
    return;
  }
  connection->OnMessage(message);
}

void SoftConnectionManager::AnswerUnmatched(const Flow& flow, uint64_t transaction_id,
                                            const CmMessage& message) {
  if (const auto* dreq = std::get_if<wire::CmDreq>(&message)) {
    // Whatever it was, it is over.
    Answer(
        flow, transaction_id,
        wire::CmDrep{.local_comm_id = dreq->remote_comm_id, .remote_comm_id = dreq->local_comm_id});
  } else if (const auto* rep = std::get_if<wire::CmRep>(&message)) {
    // The connecting side has gone; without this the peer would repeat its REP for a minute.
    wire::CmRej rej;
    rej.local_comm_id = rep->remote_comm_id;
    rej.remote_comm_id = rep->local_comm_id;
    rej.message = CmMessageKind::kRep;
    rej.reason = RejReason::kInvalidCommId;
    Answer(flow, transaction_id, rej);
  }
}

void SoftConnectionManager::OnReq(const Flow& flow, uint64_t transaction_id,
                                  const wire::CmReq& req) {
  CmConnection* known = connections_.FindPassive(flow.remote, req.local_comm_id);
  if (known == nullptr || known->state() == CmState::kClosed) {
    OnNewReq(flow, transaction_id, req);
    return;
  }
  if (known->facts().flow.local == flow.local && known->IsRepetition(req, transaction_id)) {
    ++counters_.repetitions;
    known->OnMessage(req);
    return;
  }
  // The peer uses an id again that is not free yet; with another one it may try at once.
  Refuse(flow, transaction_id, req, RejReason::kDuplicateLocalCommId);
}

void SoftConnectionManager::OnNewReq(const Flow& flow, uint64_t transaction_id,
                                     const wire::CmReq& req) {
  CmRequest request;
  if (const auto reason = ReadReq(req, flow, &request)) {
    Refuse(flow, transaction_id, req, *reason);
    return;
  }
  const auto listener = ports_.FindListener(request.space, request.local.port, flow.local);
  device::Device* device = directory_->FindByAddress(flow.local);
  if (!listener || device == nullptr) {
    Refuse(flow, transaction_id, req, RejReason::kInvalidServiceId);
    return;
  }
  const device::Mtu mtu = PathMtu(*device, flow.local, flow.remote);
  if (req.path_mtu == 0 || req.path_mtu > static_cast<uint8_t>(mtu)) {
    RefuseMtu(flow, transaction_id, req, mtu);
    return;
  }
  SoftCmEndpoint* endpoint = endpoints_.at(*listener);
  std::shared_ptr<const void> place = endpoint->TakeBacklogPlace();
  if (place == nullptr) {
    ++counters_.requests_over_backlog;
    return;
  }
  CmFacts facts;
  facts.transaction_id = transaction_id;
  facts.flow.local = flow.local;
  facts.flow.remote = flow.remote;
  facts.node_guid = device->attr().node_guid;
  facts.sgid_index = SgidIndexOf(*device, flow.local);
  TakeReq(req, options_, &facts);
  AcceptIntoBacklog(request, facts, req, device, endpoint, std::move(place));
}

void SoftConnectionManager::AcceptIntoBacklog(const CmRequest& request, CmFacts facts,
                                              const wire::CmReq& req, device::Device* device,
                                              SoftCmEndpoint* listener,
                                              std::shared_ptr<const void> place) {
  auto endpoint = std::make_unique<SoftCmEndpoint>(this, listener->space(), nullptr);
  absl::StatusOr<CmConnection*> added = absl::ResourceExhaustedError("cm: pending requests");
  if (pending_requests_ < options_.max_pending_requests) {
    added = AddConnection(CmState::kReqRcvd, facts, device, endpoint->id());
  }
  if (!added.ok()) {
    ++counters_.requests_over_limit;
    return;
  }
  CmConnection* connection = *added;
  ++counters_.requests;
  ++pending_requests_;
  connection->AwaitOwner();
  OnRemoteQpn(*connection);
  endpoint->Adopt(connection, request.local, request.peer);

  device::CmEvent event = MakeCmEvent(device::CmEventType::kConnectRequest);
  event.param = ParamOf(req);
  event.path_mtu = facts.path_mtu;
  event.new_endpoint = std::move(endpoint);
  event.backlog_place = std::move(place);
  Post(listener->id(), std::move(event));
}

void SoftConnectionManager::Refuse(const Flow& flow, uint64_t transaction_id,
                                   const wire::CmReq& req, RejReason reason) {
  ++counters_.requests_refused;
  wire::CmRej rej;
  rej.remote_comm_id = req.local_comm_id;
  rej.reason = reason;
  Answer(flow, transaction_id, rej);
}

// A path MTU that the interface cannot carry would connect and then lose every full packet. The
// peer is told what fits, in the form of the REQ's own field; ours asks again with that, others
// report reason 26, which says what is wrong.
void SoftConnectionManager::RefuseMtu(const Flow& flow, uint64_t transaction_id,
                                      const wire::CmReq& req, device::Mtu mtu) {
  ++counters_.requests_refused;
  wire::CmRej rej;
  rej.remote_comm_id = req.local_comm_id;
  rej.reason = RejReason::kInvalidMtu;
  rej.info_bytes = 1;
  rej.info[0] = static_cast<uint8_t>(static_cast<unsigned>(mtu) << 4);
  Answer(flow, transaction_id, rej);
}

void SoftConnectionManager::Answer(const Flow& flow, uint64_t transaction_id,
                                   const CmMessage& message) {
  Mad mad;
  wire::BuildCmMad(transaction_id, message, mad);
  Flow back;
  back.local = flow.local;
  back.remote = flow.remote;
  SendMad(back, mad);
}

}  // namespace rdmad::soft
