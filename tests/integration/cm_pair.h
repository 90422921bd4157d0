// Two CM ids that a test connects step by step, each with an event channel of its own.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdmad/rdmad.h"

namespace rdmad::testing {

// Waits for the next event and checks its type. Errors: DeadlineExceeded, Internal (another event;
// names both).
absl::StatusOr<std::unique_ptr<CmEvent>> ExpectEvent(EventChannel& channel, CmEventType type,
                                                     absl::Duration timeout = absl::Seconds(10));

// An id that listens on a free port of `address` ("127.0.0.2", "fd00::2"), and its channel.
struct ListeningId {
  std::unique_ptr<EventChannel> channel;
  std::unique_ptr<CmId> id;
  Address address;
};
absl::StatusOr<ListeningId> ListenOn(const Client& client, const std::string& address);

// An id with address and route resolved, its channel, and its QP with CQs that can be polled.
struct ActiveId {
  std::unique_ptr<EventChannel> channel;
  std::unique_ptr<CmId> id;
};
absl::StatusOr<ActiveId> Resolve(const Client& client, const Address& peer);

// Both ends of an established connection with QPs, one CQ for each QP. Objects of the passive end
// were made in `to`.
struct QpPair {
  ActiveId active;
  ListeningId listener;
  std::unique_ptr<CmId> passive;
  CompletionQueue active_cq;
  CompletionQueue passive_cq;
};
struct QpPairOptions {
  QpCap active_cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_inline_bytes = 64};
  QpCap passive_cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_inline_bytes = 64};
  const CompletionChannel* active_channel = nullptr;
  const CompletionChannel* passive_channel = nullptr;
  ConnParam active_param;
  ConnParam passive_param;
  uint32_t active_vector = 0;
  uint32_t passive_vector = 0;
};
absl::StatusOr<QpPair> ConnectQps(const Client& from, const Client& to, const std::string& address,
                                  const QpPairOptions& options = {});

// Polls until one completion comes. Errors: DeadlineExceeded.
absl::StatusOr<Wc> WaitForWc(CompletionQueue& cq, absl::Duration timeout = absl::Seconds(10));

}  // namespace rdmad::testing
