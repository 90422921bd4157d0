// What a Listener is: a listening id, and the endpoints that are being accepted.
#pragma once

#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/deadline.h"
#include "client/sdk/endpoint_state.h"
#include "client/sdk/session.h"
#include "rdmad/cm.h"
#include "rdmad/endpoint.h"

namespace rdmad::sdk {

// Requests are accepted as they come; each endpoint is handed out once it is established. All their events arrive on one
// channel until then. Thread: one at a time. Owner: Listener.
class ListenerState {
 public:
  static absl::StatusOr<std::unique_ptr<ListenerState>> Listen(std::shared_ptr<ClientState> client,
                                                               const Address& address, const EndpointOptions& options,
                                                               int backlog);
  ~ListenerState();
  ListenerState(const ListenerState&) = delete;
  ListenerState& operator=(const ListenerState&) = delete;

  // Null: none yet.
  absl::StatusOr<std::shared_ptr<EndpointState>> TryAccept();
  absl::StatusOr<std::shared_ptr<EndpointState>> Accept(Deadline deadline);
  int fd() const noexcept { return channel_->fd(); }
  const Address& local_addr() const noexcept { return address_; }

 private:
  ListenerState(std::shared_ptr<ClientState> client, const Address& address, const EndpointOptions& options,
                int backlog);
  // On the client's living session.
  absl::Status Start();
  void Stop() noexcept;
  // Anew, after the daemon was lost. Unavailable: no daemon, or one that does not answer.
  absl::Status Restart();
  // The endpoint that the event completed, if it did.
  std::shared_ptr<EndpointState> OnEvent(CmEvent& event);
  void OnConnectRequest(CmEvent& event);

  const std::shared_ptr<ClientState> client_;
  Address address_;  // with the port that was taken
  const EndpointOptions options_;
  const int backlog_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<EventChannel> channel_;
  std::unique_ptr<CmId> id_;
  std::map<const CmId*, std::shared_ptr<EndpointState>> accepting_;
};

}  // namespace rdmad::sdk
