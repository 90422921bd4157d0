// Which rdma_cm port belongs to whom: the port spaces TCP, UDP and IB, each with its own 65,535
// ports.
//
// The rules are those of the kernel's rdma_cm. A port may be bound several times if the addresses
// differ; a wildcard differs from nothing of its family, and :: also covers IPv4 unless its owner
// asked for IPv6 only. With REUSEADDR on both sides overlapping binds are allowed while neither
// listens; only one of them can listen then. Accepted connections hold no port, so a listener's
// port is free again the moment the listener goes.
//
// Thread: control. Owner: a connection manager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/socket_address.h"
#include "daemon/device/connection_manager.h"

namespace rdmad::device {

class PortTable {
 public:
  using OwnerId = uint64_t;

  struct Claim {
    PortSpace space = PortSpace::kTcp;
    SocketAddress local;  // port 0: any ephemeral one
    bool reuse = false;
    bool v6_only = false;
  };

  PortTable(uint16_t ephemeral_first, uint16_t ephemeral_last) noexcept
      : ephemeral_first_(ephemeral_first), ephemeral_last_(ephemeral_last) {}

  // Takes a port for an owner that has none, and returns it. `random` decides where the search for
  // an ephemeral port begins. Errors: AlreadyExists (taken), ResourceExhausted (no ephemeral port
  // left).
  absl::StatusOr<uint16_t> Bind(OwnerId owner, const Claim& claim, uint64_t random);
  // Options that may change after the binding; what is bound already is not looked at. Harmless for
  // an owner without a port.
  void SetOptions(OwnerId owner, bool reuse, bool v6_only);
  // Makes the owner's binding a listener. Errors: AlreadyExists (an overlapping binding),
  // FailedPrecondition (no port).
  absl::Status Listen(OwnerId owner);
  // Harmless for an owner without a port.
  void Release(OwnerId owner);

  // The listener for a request to this address and port. Listeners do not overlap, so there is at
  // most one.
  std::optional<OwnerId> FindListener(PortSpace space, uint16_t port,
                                      const IpAddress& dest) const;

  [[nodiscard]] size_t size() const noexcept { return key_of_owner_.size(); }

 private:
  struct Binding {
    OwnerId owner;
    IpAddress address;
    bool reuse;
    bool v6_only;
    bool listening;
  };
  using Key = uint32_t;  // port space and port

  // Null: it has no port.
  Binding* FindBinding(OwnerId owner);
  static Key KeyOf(PortSpace space, uint16_t port) noexcept;
  static bool Covers(const Binding& binding, const IpAddress& address) noexcept;
  static bool Overlap(const Binding& a, const Binding& b) noexcept;
  bool IsFree(Key key, const Binding& wanted) const;
  std::optional<uint16_t> FindEphemeral(PortSpace space, const Binding& wanted,
                                        uint64_t random) const;

  const uint16_t ephemeral_first_;
  const uint16_t ephemeral_last_;
  std::unordered_map<Key, std::vector<Binding>> bindings_;
  std::unordered_map<OwnerId, Key> key_of_owner_;
};

}  // namespace rdmad::device
