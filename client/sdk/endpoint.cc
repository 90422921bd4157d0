#include "rdmad/endpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/connect_operation.h"
#include "client/sdk/endpoint_state.h"
#include "client/sdk/listener_state.h"
#include "client/sdk/status_macros.h"

namespace rdmad {
namespace {

using sdk::Deadline;

void PutBigEndian(uint64_t value, size_t bytes, std::byte* out) noexcept {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(value >> (8 * (bytes - 1 - i)));
}

uint64_t GetBigEndian(const std::byte* in, size_t bytes) noexcept {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(in[i]);
  return value;
}

// "host:port", where host may be a name.
absl::StatusOr<std::vector<AddrInfo>> Resolve(const std::string& peer) {
  if (const absl::StatusOr<Address> address = Address::Parse(peer); address.ok()) {
    AddrInfo info;
    info.dst = *address;
    return std::vector<AddrInfo>{info};
  }
  const size_t colon = peer.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == peer.size() || peer.front() == '[') {
    return absl::InvalidArgumentError(absl::StrCat("connect: \"", peer, "\": expected host:port or [v6]:port"));
  }
  return GetAddrInfo(peer.substr(0, colon), peer.substr(colon + 1));
}

}  // namespace

std::array<std::byte, RemoteBuffer::kEncodedBytes> RemoteBuffer::Encode() const noexcept {
  std::array<std::byte, kEncodedBytes> out{};
  PutBigEndian(addr, 8, out.data());
  PutBigEndian(length_bytes, 8, out.data() + 8);
  PutBigEndian(rkey, 4, out.data() + 16);
  return out;
}

absl::StatusOr<RemoteBuffer> RemoteBuffer::Decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kEncodedBytes) {
    return absl::InvalidArgumentError(absl::StrCat("remote buffer: bytes=", bytes.size(), " need=", kEncodedBytes));
  }
  RemoteBuffer remote;
  remote.addr = GetBigEndian(bytes.data(), 8);
  remote.length_bytes = GetBigEndian(bytes.data() + 8, 8);
  remote.rkey = static_cast<uint32_t>(GetBigEndian(bytes.data() + 16, 4));
  return remote;
}

bool IsClosed(const absl::Status& status) noexcept { return absl::IsOutOfRange(status); }

Endpoint::Endpoint(std::shared_ptr<sdk::EndpointState> state) noexcept : state_(std::move(state)) {}
Endpoint::Endpoint(Endpoint&&) noexcept = default;
Endpoint& Endpoint::operator=(Endpoint&&) noexcept = default;
Endpoint::~Endpoint() = default;

absl::StatusOr<Endpoint> Endpoint::Connect(const Client& client, const Address& peer, EndpointOptions options) {
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::Session> session, client.state()->Live());
  SDK_ASSIGN_OR_RETURN(const std::unique_ptr<sdk::ConnectOperation> operation,
                       sdk::ConnectOperation::Start(session, peer, options));
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::EndpointState> state, operation->Wait());
  return Endpoint(std::move(state));
}

absl::StatusOr<Endpoint> Endpoint::Connect(const Client& client, const std::string& peer, EndpointOptions options) {
  SDK_ASSIGN_OR_RETURN(const std::vector<AddrInfo> infos, Resolve(peer));
  absl::Status first_error;
  for (const AddrInfo& info : infos) {
    absl::StatusOr<Endpoint> endpoint = Connect(client, info.dst, options);
    if (endpoint.ok()) return endpoint;
    first_error.Update(endpoint.status());
  }
  return first_error;
}

absl::Status Endpoint::Send(Buffer buffer, std::optional<uint32_t> imm, absl::Duration timeout) {
  return state_->Send(std::move(buffer), imm, Deadline::After(timeout));
}

absl::Status Endpoint::SendCopy(std::span<const std::byte> bytes, absl::Duration timeout) {
  return state_->SendCopy(bytes, Deadline::After(timeout));
}

absl::Status Endpoint::SendCopy(std::string_view text, absl::Duration timeout) {
  return SendCopy(std::as_bytes(std::span(text.data(), text.size())), timeout);
}

absl::StatusOr<Buffer> Endpoint::Receive(absl::Duration timeout) { return state_->Receive(Deadline::After(timeout)); }

absl::Status Endpoint::Write(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes,
                             std::optional<uint32_t> imm) {
  SDK_ASSIGN_OR_RETURN(const uint64_t operation,
                       state_->StartOneSided({WrOpcode::kRdmaWrite, &local, remote, offset_bytes, imm}));
  return state_->WaitFor(operation, Deadline::Infinite());
}

absl::Status Endpoint::Read(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes) {
  SDK_ASSIGN_OR_RETURN(const uint64_t operation,
                       state_->StartOneSided({WrOpcode::kRdmaRead, &local, remote, offset_bytes, std::nullopt}));
  return state_->WaitFor(operation, Deadline::Infinite());
}

absl::StatusOr<uint64_t> Endpoint::StartWrite(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes,
                                              std::optional<uint32_t> imm) {
  return state_->StartOneSided({WrOpcode::kRdmaWrite, &local, remote, offset_bytes, imm});
}

absl::StatusOr<uint64_t> Endpoint::StartRead(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes) {
  return state_->StartOneSided({WrOpcode::kRdmaRead, &local, remote, offset_bytes, std::nullopt});
}

absl::Status Endpoint::Wait(uint64_t operation, absl::Duration timeout) {
  return state_->WaitFor(operation, Deadline::After(timeout));
}

absl::Status Endpoint::Flush(absl::Duration timeout) { return state_->Flush(Deadline::After(timeout)); }

absl::StatusOr<MemoryRegion> Endpoint::Share(const Buffer& buffer, uint32_t access) {
  return state_->Share(buffer, access);
}

RemoteBuffer Endpoint::Describe(const MemoryRegion& region) noexcept {
  return {reinterpret_cast<uintptr_t>(region.addr()), region.length(), region.rkey()};
}

absl::Status Endpoint::Close(absl::Duration timeout) { return state_->Close(Deadline::After(timeout)); }
absl::StatusOr<std::optional<Buffer>> Endpoint::TryReceive() { return state_->TryReceive(); }
absl::StatusOr<bool> Endpoint::TrySend(Buffer& buffer, std::optional<uint32_t> imm) {
  return state_->TrySend(buffer, imm);
}
absl::StatusOr<bool> Endpoint::TryFlush() { return state_->TryFlush(); }
absl::StatusOr<std::optional<uint64_t>> Endpoint::TryStartWrite(const Buffer& local, const RemoteBuffer& remote,
                                                                uint64_t offset_bytes, std::optional<uint32_t> imm) {
  return state_->TryStartOneSided({WrOpcode::kRdmaWrite, &local, remote, offset_bytes, imm});
}
absl::StatusOr<std::optional<uint64_t>> Endpoint::TryStartRead(const Buffer& local, const RemoteBuffer& remote,
                                                               uint64_t offset_bytes) {
  return state_->TryStartOneSided({WrOpcode::kRdmaRead, &local, remote, offset_bytes, std::nullopt});
}
absl::StatusOr<bool> Endpoint::TryDone(uint64_t operation) { return state_->TryDone(operation); }
bool Endpoint::Arm(bool receives, bool sends) { return state_->Arm(receives, sends); }
int Endpoint::fd() const noexcept { return state_->fd(); }
Address Endpoint::local_addr() const { return state_->id().local_addr(); }
Address Endpoint::peer_addr() const { return state_->id().peer_addr(); }
const std::vector<uint8_t>& Endpoint::peer_private_data() const noexcept { return state_->peer_private_data(); }
const EndpointOptions& Endpoint::options() const noexcept { return state_->options(); }
QueuePair Endpoint::qp() const { return state_->qp(); }
ProtectionDomain Endpoint::pd() const { return ProtectionDomain(state_->qp().state()->pd()); }

Connector::Connector(std::unique_ptr<sdk::ConnectOperation> operation) noexcept : operation_(std::move(operation)) {}
Connector::Connector(Connector&&) noexcept = default;
Connector& Connector::operator=(Connector&&) noexcept = default;
Connector::~Connector() = default;

absl::StatusOr<Connector> Connector::Start(const Client& client, const Address& peer, EndpointOptions options) {
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::Session> session, client.state()->Live());
  SDK_ASSIGN_OR_RETURN(std::unique_ptr<sdk::ConnectOperation> operation,
                       sdk::ConnectOperation::Start(session, peer, options));
  return Connector(std::move(operation));
}

absl::StatusOr<std::optional<Endpoint>> Connector::Try() {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::EndpointState> state, operation_->Try());
  if (state == nullptr) return std::optional<Endpoint>();
  return std::optional<Endpoint>(Endpoint(std::move(state)));
}

int Connector::fd() const noexcept { return operation_->fd(); }
absl::Duration Connector::time_left() const { return operation_->deadline().Left(); }

Listener::Listener(std::unique_ptr<sdk::ListenerState> state) noexcept : state_(std::move(state)) {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

absl::StatusOr<Listener> Listener::Listen(const Client& client, const Address& address, EndpointOptions options,
                                          int backlog) {
  SDK_ASSIGN_OR_RETURN(std::unique_ptr<sdk::ListenerState> state,
                       sdk::ListenerState::Listen(client.state(), address, options, backlog));
  return Listener(std::move(state));
}

absl::StatusOr<Listener> Listener::Listen(const Client& client, const std::string& address, EndpointOptions options,
                                          int backlog) {
  SDK_ASSIGN_OR_RETURN(const Address parsed, Address::Parse(address));
  return Listen(client, parsed, std::move(options), backlog);
}

absl::StatusOr<Endpoint> Listener::Accept(absl::Duration timeout) {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::EndpointState> state, state_->Accept(Deadline::After(timeout)));
  return Endpoint(std::move(state));
}

absl::StatusOr<std::optional<Endpoint>> Listener::TryAccept() {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::EndpointState> state, state_->TryAccept());
  if (state == nullptr) return std::optional<Endpoint>();
  return std::optional<Endpoint>(Endpoint(std::move(state)));
}

int Listener::fd() const noexcept { return state_->fd(); }
Address Listener::local_addr() const { return state_->local_addr(); }

}  // namespace rdmad
