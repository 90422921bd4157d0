// Connecting an endpoint, step by step, without blocking: resolve, make the QP, connect, hand over.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/deadline.h"
#include "client/sdk/endpoint_state.h"
#include "client/sdk/session.h"
#include "rdmad/cm.h"
#include "rdmad/endpoint.h"

namespace rdmad::sdk {

// Each step is a request to the daemon, which answers at once, and an event that says how it went.
// Thread: one at a time. Owner: Connector, or Endpoint::Connect.
class ConnectOperation {
 public:
  static absl::StatusOr<std::unique_ptr<ConnectOperation>> Start(const std::shared_ptr<Session>& session,
                                                                 const Address& peer, const EndpointOptions& options);
  ConnectOperation(const ConnectOperation&) = delete;
  ConnectOperation& operator=(const ConnectOperation&) = delete;

  // The endpoint when it stands; null while there is nothing to do but wait for fd().
  absl::StatusOr<std::shared_ptr<EndpointState>> Try();
  // Try until it stands.
  absl::StatusOr<std::shared_ptr<EndpointState>> Wait();
  int fd() const noexcept { return channel_->fd(); }
  const Deadline& deadline() const noexcept { return deadline_; }

 private:
  ConnectOperation(std::shared_ptr<Session> session, const Address& peer, const EndpointOptions& options,
                   std::unique_ptr<EventChannel> channel);
  // True: established.
  absl::StatusOr<bool> OnEvent(const CmEvent& event);
  absl::Status OnRouteResolved();
  absl::Status TimeoutError() const;

  const std::shared_ptr<Session> session_;
  const Address peer_;
  const EndpointOptions options_;
  const Deadline deadline_;
  // Destroyed in reverse order: the id goes before the channel.
  const std::unique_ptr<EventChannel> channel_;
  std::unique_ptr<CmId> id_;  // until the QP is made
  std::shared_ptr<EndpointState> endpoint_;
  const char* step_ = "resolving the address";
};

}  // namespace rdmad::sdk
