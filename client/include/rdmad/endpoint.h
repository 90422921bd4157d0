// The short way: Endpoint is a connection that moves messages, Listener makes them from incoming requests.
//
//   auto client = rdmad::Client::Attach();
//   auto endpoint = rdmad::Endpoint::Connect(*client, "192.0.2.7:7471");
//   endpoint->Send(*pool->AllocateCopy("hello"));
//   absl::StatusOr<rdmad::Buffer> answer = endpoint->Receive();
//
// Everything below works in three styles: blocking (these calls), polled (the Try... calls, or WaitStyle::kPolled), and
// Boost.Asio (rdmad/asio.h). The objects underneath (qp(), pd()) are those of verbs.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdmad/address.h"
#include "rdmad/client.h"
#include "rdmad/cm.h"
#include "rdmad/pool.h"
#include "rdmad/verbs.h"

namespace rdmad {

namespace sdk {
class ConnectOperation;
class EndpointState;
class ListenerState;
}  // namespace sdk

struct EndpointOptions {
  uint32_t send_depth = 32;        // sends, writes and reads that may be outstanding
  uint32_t recv_depth = 32;        // receives kept posted; a sender that is faster waits
  uint32_t max_recv_bytes = 8192;  // largest message that can be received; recv_depth times this is reserved
  uint32_t max_inline_bytes = 64;  // sends up to this are copied into the queue
  uint32_t comp_vector = 0;        // which of the daemon's engines serves it; see CompletionQueue::Create
  WaitStyle wait = WaitStyle::kBlocking;
  absl::Duration connect_timeout = absl::Seconds(10);
  ConnParam param;
};

// Says where and how to reach a range of a peer's memory. Plain data: send it in a message.
struct RemoteBuffer {
  uint64_t addr = 0;
  uint64_t length_bytes = 0;
  uint32_t rkey = 0;

  static constexpr size_t kEncodedBytes = 20;
  // Big-endian addr, length, rkey.
  std::array<std::byte, kEncodedBytes> Encode() const noexcept;
  // Errors: InvalidArgument (fewer than kEncodedBytes).
  static absl::StatusOr<RemoteBuffer> Decode(std::span<const std::byte> bytes);
};

// True for the error that says that the peer closed the connection in order: the end of the stream, not a failure.
// `status` is of a call of this library; other OutOfRange errors (EFBIG, ERANGE) look the same.
bool IsClosed(const absl::Status& status) noexcept;

// One connection. Move-only. Destroying it closes it (see Close).
// Errors of all calls: what IsClosed() tells; Unavailable (the daemon is gone, or the peer stopped answering);
// DeadlineExceeded; others name themselves. After a failed WR the connection is unusable and each call says why.
// Thread: any; one thread may receive while another sends.
class Endpoint {
 public:
  // `peer`: "host:port" or "[v6]:port". Tries each address that the name has. Errors: Aborted (rejected), NotFound (name).
  static absl::StatusOr<Endpoint> Connect(const Client& client, const std::string& peer, EndpointOptions options = {});
  static absl::StatusOr<Endpoint> Connect(const Client& client, const Address& peer, EndpointOptions options = {});

  Endpoint(Endpoint&&) noexcept;
  Endpoint& operator=(Endpoint&&) noexcept;
  ~Endpoint();

  // Sends the buffer as one message and returns when it is queued; its memory goes back to the pool when the peer has
  // it. Waits while the queue is full. Errors: InvalidArgument (another session's buffer, or too long for the device).
  absl::Status Send(Buffer buffer, std::optional<uint32_t> imm = std::nullopt,
                    absl::Duration timeout = absl::InfiniteDuration());
  // Sends a copy of up to max_inline_bytes.
  absl::Status SendCopy(std::span<const std::byte> bytes, absl::Duration timeout = absl::InfiniteDuration());
  absl::Status SendCopy(std::string_view text, absl::Duration timeout = absl::InfiniteDuration());
  // The next message. A write with immediate data by the peer appears as an empty buffer that has imm().
  // Keep few at a time: their memory is that of the receives.
  absl::StatusOr<Buffer> Receive(absl::Duration timeout = absl::InfiniteDuration());

  // One-sided: copies all of `local` to `offset_bytes` of the peer's buffer, or from there. Write and Read return when
  // the bytes have moved; StartWrite and StartRead when queued, with a number to Wait for: `local` must stay until then.
  // With `imm`, the peer's Receive hears of a write.
  // Errors: InvalidArgument (beyond the remote buffer), PermissionDenied (the peer's device refused the key).
  absl::Status Write(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes = 0,
                     std::optional<uint32_t> imm = std::nullopt);
  absl::Status Read(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes = 0);
  absl::StatusOr<uint64_t> StartWrite(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes = 0,
                                      std::optional<uint32_t> imm = std::nullopt);
  absl::StatusOr<uint64_t> StartRead(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes = 0);
  // Waits until that operation and all before it are done.
  absl::Status Wait(uint64_t operation, absl::Duration timeout = absl::InfiniteDuration());
  // Waits until everything sent, written and read so far is done.
  absl::Status Flush(absl::Duration timeout = absl::InfiniteDuration());

  // Opens exactly this buffer to the peer. Access ends when the region that is returned goes away; the descriptor to send
  // to the peer is Describe(). Rights: kAccessRemoteRead, kAccessRemoteWrite.
  absl::StatusOr<MemoryRegion> Share(const Buffer& buffer, uint32_t access);
  static RemoteBuffer Describe(const MemoryRegion& region) noexcept;

  // Waits for what is queued, tells the peer, and ends. The peer receives everything first, then IsClosed.
  // OK: all that was sent, written and read is done. Errors, and the connection is ended all the same: DeadlineExceeded
  // (the peer did not take what was queued); else what ended the connection before, where something was not done by then.
  absl::Status Close(absl::Duration timeout = absl::Seconds(5));

  // The polled style: never wait. nullopt: nothing yet. TrySend leaves `buffer` to the caller when it returns false.
  absl::StatusOr<std::optional<Buffer>> TryReceive();
  absl::StatusOr<bool> TrySend(Buffer& buffer, std::optional<uint32_t> imm = std::nullopt);
  // True when nothing is outstanding.
  absl::StatusOr<bool> TryFlush();
  // nullopt: no room in the queue. Otherwise the operation's number, for TryDone; `local` must stay until it is done.
  absl::StatusOr<std::optional<uint64_t>> TryStartWrite(const Buffer& local, const RemoteBuffer& remote,
                                                        uint64_t offset_bytes = 0,
                                                        std::optional<uint32_t> imm = std::nullopt);
  absl::StatusOr<std::optional<uint64_t>> TryStartRead(const Buffer& local, const RemoteBuffer& remote,
                                                       uint64_t offset_bytes = 0);
  absl::StatusOr<bool> TryDone(uint64_t operation);
  // For event loops: asks to be woken by the next message, or when something that was sent is done. True: sleep until
  // fd() is readable, then Try again. False: Try all again now, for something has come or something was done since the
  // last time, which may have made room. fd() is the Endpoint's alone to read; -1 with WaitStyle::kPolled.
  bool Arm(bool receives = true, bool sends = false);
  int fd() const noexcept;

  Address local_addr() const;
  Address peer_addr() const;
  // What the peer gave with connect or accept; may be padded with zeros.
  const std::vector<uint8_t>& peer_private_data() const noexcept;
  const EndpointOptions& options() const noexcept;
  QueuePair qp() const;
  ProtectionDomain pd() const;

  explicit Endpoint(std::shared_ptr<sdk::EndpointState> state) noexcept;

 private:
  std::shared_ptr<sdk::EndpointState> state_;
};

// Connecting without blocking; what async_connect drives. Try until it gives the endpoint.
class Connector {
 public:
  static absl::StatusOr<Connector> Start(const Client& client, const Address& peer, EndpointOptions options = {});
  Connector(Connector&&) noexcept;
  Connector& operator=(Connector&&) noexcept;
  ~Connector();
  // nullopt: not yet; wait for fd(), but not longer than time_left().
  absl::StatusOr<std::optional<Endpoint>> Try();
  int fd() const noexcept;
  absl::Duration time_left() const;

 private:
  explicit Connector(std::unique_ptr<sdk::ConnectOperation> operation) noexcept;
  std::unique_ptr<sdk::ConnectOperation> operation_;
};

// Accepts connections on an address. Move-only. Survives the daemon: the next Accept attaches and listens anew.
// Thread: one at a time.
class Listener {
 public:
  // `address`: "192.0.2.7:7471", "[::]:7471", ":7471" (any); port 0 takes a free one, see local_addr().
  // `options` are those of each Endpoint. Errors: AlreadyExists (port in use), NotFound (no device has the address).
  static absl::StatusOr<Listener> Listen(const Client& client, const std::string& address, EndpointOptions options = {},
                                         int backlog = 128);
  static absl::StatusOr<Listener> Listen(const Client& client, const Address& address, EndpointOptions options = {},
                                         int backlog = 128);
  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  // The next connection, established. Peers that fail half-way are dropped and hold up nobody.
  // Errors: DeadlineExceeded; Unavailable (the daemon did not come back within the Client's deadline).
  absl::StatusOr<Endpoint> Accept(absl::Duration timeout = absl::InfiniteDuration());
  // nullopt: none yet; wait for fd(), which may change when the daemon had to be found again.
  absl::StatusOr<std::optional<Endpoint>> TryAccept();
  int fd() const noexcept;
  Address local_addr() const;

 private:
  explicit Listener(std::unique_ptr<sdk::ListenerState> state) noexcept;
  std::unique_ptr<sdk::ListenerState> state_;
};

}  // namespace rdmad
