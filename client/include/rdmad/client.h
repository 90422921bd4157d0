// One application's attachment to the daemon.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdmad/types.h"

namespace rdmad {

namespace sdk {
class ClientState;
class Session;
}  // namespace sdk

struct AttachOptions {
  // Where the daemon's sockets are. Empty: $RDMAD_RUN_DIR, else $XDG_RUNTIME_DIR/rdmad if that exists, else /run/rdmad.
  std::string run_dir;
  // What operators see; empty: the name of the process. At most 64 printable bytes.
  std::string name;
  // How long to wait for a daemon that is not there yet; also when a lost daemon is looked for again.
  absl::Duration deadline = absl::Seconds(5);
  // Bound of every single request to the daemon. None of them waits for a peer.
  absl::Duration call_timeout = absl::Seconds(30);
};

// ibv_event_type.
enum AsyncEventType : uint32_t {
  // Of a CQ: it overran, and its QPs are in error.
  kAsyncCqErr = 0,
  // Of a QP.
  kAsyncQpFatal = 1,
  kAsyncQpReqErr = 2,
  kAsyncQpAccessErr = 3,
  kAsyncCommEst = 4,     // data came before the connection was told to be there; see CmId::Notify
  kAsyncSqDrained = 5,   // state SQD: what had begun is done
  kAsyncPathMig = 6,
  kAsyncPathMigErr = 7,
  kAsyncQpLastWqe = 16,  // in error, and will take no more receives from its SRQ
  // Of a device.
  kAsyncDeviceFatal = 8,
  kAsyncPortActive = 9,
  kAsyncPortErr = 10,
  kAsyncLidChange = 11,
  kAsyncPkeyChange = 12,
  kAsyncSmChange = 13,
  kAsyncClientReregister = 17,
  kAsyncGidChange = 18,  // ask GetDevices
  // Of an SRQ.
  kAsyncSrqErr = 14,
  kAsyncSrqLimitReached = 15,
  // Of a WQ, which rdmad has not.
  kAsyncWqFatal = 19,
};

// ibv_async_event.
struct AsyncEvent {
  uint32_t type = 0;    // AsyncEventType
  uint64_t handle = 0;  // of the QP, CQ or SRQ (its handle()), or the index of the device
};

// "SRQ limit reached", for a person (ibv_event_type_str). Never null.
const char* AsyncEventString(uint32_t type) noexcept;

// An attached session. A Client is a cheap handle: copies are the same session, and every object made from it keeps
// the session alive. When the last of them is gone the daemon takes everything back.
//
// When the daemon goes away, whatever waits returns Unavailable, outstanding work is flushed with kWrFlushErr, event
// channels report DEVICE_REMOVAL, and existing objects stay dead. The Client itself is usable on: the next object made
// from it attaches anew (waiting up to `deadline`), as does Attach().
//
// Fork: the child must use nothing of it, and leave by exec or _exit. While it holds the inherited descriptors, the
// session lives on, whatever becomes of the parent.
// Thread: any.
class Client {
 public:
  // Errors: Unavailable (no daemon within the deadline; says which socket was tried and what to do), DeadlineExceeded (one
  // is there and does not answer), PermissionDenied, FailedPrecondition (versions differ), InvalidArgument (name or path too
  // long).
  static absl::StatusOr<Client> Attach(AttachOptions options = {});

  uint64_t session_id() const;
  std::string daemon_version() const;
  const std::string& run_dir() const;
  // False from the moment on that the daemon's hang-up was seen; looks for it now.
  bool IsAttached() const;

  // All devices of the daemon that this session may use (rdma_get_devices, ibv_query_device, ibv_query_port).
  absl::StatusOr<std::vector<DeviceInfo>> GetDevices() const;

  // A descriptor that is readable when GetAsyncEvent has something. Belongs to the Client.
  int async_fd() const;
  // Waits for an event of this session's QPs, CQs, SRQs or devices. When the daemon goes away: one kAsyncDeviceFatal, then
  // Unavailable. Errors: DeadlineExceeded (nothing within `timeout`, or O_NONBLOCK is set and nothing is there).
  absl::StatusOr<AsyncEvent> GetAsyncEvent(absl::Duration timeout = absl::InfiniteDuration());

  // For the rest of the SDK. The session as it is, dead or not; and one that lives, attached anew if need be.
  const std::shared_ptr<sdk::ClientState>& state() const { return state_; }

 private:
  explicit Client(std::shared_ptr<sdk::ClientState> state);
  std::shared_ptr<sdk::ClientState> state_;
};

}  // namespace rdmad
