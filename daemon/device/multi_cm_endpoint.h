// The endpoint of a MultiConnectionManager: none, several or one endpoint of its managers behind
// one face.
//
//   no part        nothing is known of the local address; options are remembered
//   several parts  bound to a wildcard, or listening on it: all on the same port
//   one part       decided; every call is that endpoint's
//
// Thread: control. Owner: the caller of CreateEndpoint().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/multi_connection_manager.h"

namespace rdmad::device {

class MultiCmEndpoint : public CmEndpoint {
 public:
  MultiCmEndpoint(MultiConnectionManager* manager, PortSpace space, CmEventSink* sink);
  ~MultiCmEndpoint() override;

  void SetSink(CmEventSink* sink) noexcept override { sink_ = sink; }
  absl::Status BindAddr(const SocketAddress& local) override;
  absl::Status ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                           uint32_t timeout_ms) override;
  absl::Status ResolveRoute(uint32_t timeout_ms) override;
  absl::Status Listen(int backlog) override;
  absl::Status Connect(const ConnParam& param) override;
  absl::Status Establish() override;
  absl::Status Accept(const ConnParam& param) override;
  absl::Status Reject(std::span<const uint8_t> private_data) override;
  absl::Status Disconnect() override;
  absl::Status NotifyCommEstablished() override;
  absl::Status SetOption(uint32_t option, std::span<const uint8_t> value) override;
  absl::Status JoinMulticast(const SocketAddress& group, uint32_t join_flags,
                             uint64_t cookie) override;
  absl::Status LeaveMulticast(const SocketAddress& group) override;
  absl::StatusOr<QpAttr> InitQpAttr(QpState state) const override;

  // Of several parts the first one speaks.
  Device* device() const noexcept override;
  SocketAddress local() const noexcept override;
  SocketAddress peer() const noexcept override;
  const char* state_name() const noexcept override;
  uint32_t remote_qpn() const noexcept override;

 private:
  // One manager's endpoint. It is the endpoint's sink, so it knows whose events these are.
  struct Part : CmEventSink {
    Part(MultiCmEndpoint* of, ConnectionManager* by) : owner(of), manager(by) {}
    void OnCmEvent(CmEvent event) override { owner->OnPartEvent(*this, std::move(event)); }
    std::shared_ptr<const void> TakeBacklogPlace() override {
      return owner->sink_ != nullptr ? owner->sink_->TakeBacklogPlace() : nullptr;
    }

    MultiCmEndpoint* const owner;
    ConnectionManager* const manager;
    std::unique_ptr<CmEndpoint> endpoint;
  };
  using Parts = std::vector<std::unique_ptr<Part>>;
  struct Option {
    uint32_t name;
    std::vector<uint8_t> value;
  };

  // The decided part. FailedPrecondition: there is none yet. Of several parts it is the first,
  // which refuses what needs a decision, by its own state.
  absl::StatusOr<CmEndpoint*> Decided(const char* call) const;
  // A part with all options set; not one of parts_ yet.
  absl::StatusOr<std::unique_ptr<Part>> MakePart(ConnectionManager* manager);
  // Parts in all managers that can be bound to the wildcard.
  absl::StatusOr<Parts> BindAll(const SocketAddress& wildcard);
  // The same for one port, or where `wildcard.port` is 0 for what the first manager picks. `*clash`
  // gets the parts of an attempt that failed because some manager had the port taken.
  absl::StatusOr<Parts> TryBindAll(const SocketAddress& wildcard, Parts* clash);
  // The part of that manager among several; bound now if it could not be bound with the others.
  absl::StatusOr<Part*> PartOf(ConnectionManager* manager);
  // The manager that serves a local address. NotFound: none does.
  absl::StatusOr<ConnectionManager*> ManagerOf(const char* call, const SocketAddress& local) const;
  void OnPartEvent(Part& part, CmEvent event);

  MultiConnectionManager* const manager_;
  const PortSpace space_;
  CmEventSink* sink_;
  std::vector<Option> options_;
  Parts parts_;
};

}  // namespace rdmad::device
