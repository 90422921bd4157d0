// Making connections, with the names of librdmacm: EventChannel, CmEvent, CmId, GetAddrInfo.
//
// A CmId is what a socket is to TCP, or with PortSpace::kUdp to UDP. With an EventChannel it is asynchronous: calls return at once and what came of them
// arrives as a CmEvent. Without one it is synchronous: calls wait for their event and return its outcome. The semantics
// of each call are those of its manual page: CmId::ResolveAddr is rdma_resolve_addr(3), and so on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdmad/address.h"
#include "rdmad/client.h"
#include "rdmad/types.h"
#include "rdmad/verbs.h"

namespace rdmad {

namespace sdk {
class Deadline;
class EventChannelState;
class IdState;
struct EventRecord;
}  // namespace sdk

class CmId;
class EventChannel;

// rdma_cm_event_type.
enum class CmEventType : uint32_t {
  kAddrResolved = 0,
  kAddrError = 1,
  kRouteResolved = 2,
  kRouteError = 3,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
  kMulticastJoin = 12,
  kMulticastError = 13,
  kAddrChange = 14,
  kTimewaitExit = 15,
};

// "RDMA_CM_EVENT_ESTABLISHED" (rdma_event_str). Never null.
const char* EventString(CmEventType type) noexcept;

// rdma_ud_param: how a datagram reaches its peer.
struct UdParam {
  uint32_t qpn = 0;
  uint32_t qkey = 0;
  AddressHandleAttr ah;
};

// What happened to an id. Destroying the event acknowledges it (rdma_ack_cm_event); the destruction of its id waits for
// that.
class CmEvent {
 public:
  ~CmEvent();
  CmEvent(const CmEvent&) = delete;
  CmEvent& operator=(const CmEvent&) = delete;

  CmEventType type() const noexcept;
  // 0, a negative errno, with kRejected the wire's reason (8: nobody listens; 28: the application said no), or with
  // kUnreachable of PortSpace::kUdp the wire's SIDR status (1: nobody listens; 2: the application said no).
  int status() const noexcept;
  // The id that the event is about. With kConnectRequest it is new, and goes away with the event unless taken.
  CmId* id() const noexcept { return id_; }
  CmId* listen_id() const noexcept { return listen_id_; }
  std::unique_ptr<CmId> TakeId() noexcept;
  // Of the peer, with kConnectRequest, kConnectResponse, kEstablished and kRejected. Private data may be longer than
  // what the peer gave: the rest is zero. With PortSpace::kUdp: the private data only.
  const ConnParam& param() const noexcept;
  Mtu path_mtu() const noexcept;
  // Of PortSpace::kUdp. With kEstablished of a Connect: the QP that answered. With kMulticastJoin: the group. With
  // kConnectRequest only `ah`, the way back, means anything.
  const UdParam& ud() const noexcept;
  // As given to JoinMulticast; with kMulticastJoin and kMulticastError.
  uint64_t multicast_cookie() const noexcept;
  // OK, or what went wrong in words, with both ends' addresses.
  absl::Status ToStatus() const;

  // For the SDK: acknowledges while the event still stands.
  void AckEarly() noexcept;
  explicit CmEvent(std::unique_ptr<sdk::EventRecord> record) noexcept;

 private:
  std::unique_ptr<sdk::EventRecord> record_;
  std::unique_ptr<CmId> new_id_;
  CmId* id_ = nullptr;
  CmId* listen_id_ = nullptr;
};

// Where the events of any number of ids arrive (rdma_event_channel). Ids keep their channel alive.
class EventChannel {
 public:
  static absl::StatusOr<std::unique_ptr<EventChannel>> Create(const Client& client);
  ~EventChannel();
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;

  // Readable when GetEvent has something; works with poll, epoll, dup and O_NONBLOCK. Belongs to the channel.
  int fd() const noexcept;

  // Waits for the next event (rdma_get_cm_event). When the daemon goes away, each id of the channel gets one
  // kDeviceRemoval; after that, Unavailable. Errors: DeadlineExceeded (`timeout`, or O_NONBLOCK and nothing there).
  // Thread: any.
  absl::StatusOr<std::unique_ptr<CmEvent>> GetEvent(absl::Duration timeout = absl::InfiniteDuration());

  explicit EventChannel(std::shared_ptr<sdk::EventChannelState> state) noexcept;
  const std::shared_ptr<sdk::EventChannelState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<sdk::EventChannelState> state_;
};

// rdma_addrinfo.
struct AddrInfo {
  bool passive = false;  // RAI_PASSIVE: for Listen
  PortSpace port_space = PortSpace::kTcp;
  QpType qp_type = QpType::kRc;
  Address src;  // none: the route decides
  Address dst;
};

struct AddrInfoHints {
  bool passive = false;
  bool numeric_host = false;
  uint8_t family = 0;  // 0, 4 or 6
  PortSpace port_space = PortSpace::kTcp;
};

// rdma_join_multicast_ex.
enum class MulticastJoin : uint32_t {
  kFullMember = 0,
  kSendOnly = 1,  // sends to the group, and gets nothing of it
};

// Names to addresses, best first (rdma_getaddrinfo). May ask name servers, and then blocks.
// Errors: NotFound (unknown name or service, with the resolver's words), InvalidArgument (both empty).
absl::StatusOr<std::vector<AddrInfo>> GetAddrInfo(const std::string& node, const std::string& service,
                                                  const AddrInfoHints& hints = {});

// Errors of all calls besides those named: FailedPrecondition (wrong state; says which), Unavailable (daemon gone).
// Synchronous calls return what the failing event says: Unavailable (peer does not answer), Aborted (rejected; the
// reason and the peer's private data are in event()), DeadlineExceeded.
// Thread: any, one call at a time; events may be fetched by another thread meanwhile.
class CmId {
 public:
  // Without a channel the id is synchronous. `context` is the caller's.
  static absl::StatusOr<std::unique_ptr<CmId>> Create(const Client& client, EventChannel* channel = nullptr,
                                                      PortSpace port_space = PortSpace::kTcp, void* context = nullptr);
  // Bound (passive) or resolved (active, with a QP if `init` is given) and synchronous, in one call (rdma_create_ep).
  // A passive id keeps `pd` and `init` for the QPs of the ids that GetRequest returns. The type of QP is `info`'s.
  static absl::StatusOr<std::unique_ptr<CmId>> CreateEp(const Client& client, const AddrInfo& info,
                                                        const ProtectionDomain* pd = nullptr,
                                                        const QpInit* init = nullptr);
  // As DestroyId.
  static absl::Status DestroyEp(std::unique_ptr<CmId> id) { return id->DestroyId(); }

  // As DestroyId.
  ~CmId();
  CmId(const CmId&) = delete;
  CmId& operator=(const CmId&) = delete;

  // Ends what the id does (a connection is disconnected, a request rejected), destroys its QP, and then blocks until
  // every event of it that GetEvent returned is acknowledged (rdma_destroy_id). Events nobody fetched vanish.
  absl::Status DestroyId();

  // Sends the id's events to another channel; null makes it synchronous. Blocks until the events fetched from the old
  // channel are acknowledged. Events that nobody fetched come along; since they cannot be put into the new channel's
  // descriptor, call GetEvent once before waiting for it.
  absl::Status Migrate(EventChannel* channel);

  // RDMA_OPTION_ID (0): TOS 0 (1 byte), REUSEADDR 1 (int), AFONLY 2 (int), ACK_TIMEOUT 3 (1 byte).
  absl::Status SetOption(uint32_t level, uint32_t option, std::span<const std::byte> value);

  // Errors: AlreadyExists (port in use), NotFound (no device has the address).
  absl::Status BindAddr(const Address& local);
  // Ends in kAddrResolved or kAddrError; so with the others.
  absl::Status ResolveAddr(const Address& local, const Address& peer, absl::Duration timeout);
  absl::Status ResolveRoute(absl::Duration timeout);
  absl::Status Listen(int backlog = 128);
  // Ends in kEstablished (without a QP of the id's: kConnectResponse), kRejected or kUnreachable. PortSpace::kUdp asks the
  // peer's listener for a QP: kEstablished brings it, see CmEvent::ud(), and a refusal is kUnreachable with a positive
  // status; of `param` only private_data counts.
  absl::Status Connect(const ConnParam& param = {});
  // Waits for a connection request of a synchronous listening id and returns its id, synchronous as well
  // (rdma_get_request). Errors: DeadlineExceeded.
  absl::StatusOr<std::unique_ptr<CmId>> GetRequest(absl::Duration timeout = absl::InfiniteDuration());
  // Ends in kEstablished; with PortSpace::kUdp the peer is told of this id's QP (or param.qpn), and that is all.
  absl::Status Accept(const ConnParam& param = {});
  absl::Status Reject(std::span<const uint8_t> private_data = {});
  // For a connecting id without QP of its own, after kConnectResponse (rdma_establish).
  absl::Status Establish();
  // For a QP that the application moves by itself: hands on what GetAsyncEvent said of it, kAsyncCommEst (rdma_notify).
  absl::Status Notify(uint32_t event);
  // Ends in kDisconnected. OK at once if the connection is over already, or was refused: the QP is in state Err then, too.
  // Not with PortSpace::kUdp.
  absl::Status Disconnect();

  // Of an id with PortSpace::kUdp that is bound to a device: joins the group (rdma_join_multicast). Ends in kMulticastJoin,
  // which brings the group's address in CmEvent::ud(), or kMulticastError. Receives of the id's QP then get what is sent to
  // the group, that of this host's other members included; a QP made later is for AttachMulticast. `cookie` comes back in
  // the event. Errors: AlreadyExists (the id is in it), InvalidArgument (no multicast address).
  absl::Status JoinMulticast(const Address& group, uint64_t cookie = 0,
                             MulticastJoin join = MulticastJoin::kFullMember);
  // Events of the join that nobody fetched stay. Errors: NotFound (the id is not in the group). DestroyId leaves all groups.
  absl::Status LeaveMulticast(const Address& group);

  // The attributes that move this connection's QP into `state` (rdma_init_qp_attr).
  absl::StatusOr<QpAttr> InitQpAttr(QpState state) const;

  // Makes the QP that this id connects, in state Init, ready for receives (rdma_create_qp). Without `pd` the default PD
  // of the device is taken; without init.srq the id's SRQ, if there is one; CQs that are missing are made, each with a
  // channel (see GetSendComp). With PortSpace::kUdp the QP, a UD one with kUdpQkey, comes up in state Rts: ready for all.
  // Errors: InvalidArgument (UD in another port space, another type in that one).
  absl::Status CreateQp(const ProtectionDomain* pd, const QpInit& init);
  void DestroyQp();
  // Makes the SRQ that the id's QP is going to use (rdma_create_srq). Without `pd` the default PD of the device is taken.
  absl::Status CreateSrq(const ProtectionDomain* pd, const SrqInit& init);
  // Lets go of it; it goes away with its last user.
  void DestroySrq();

  Address local_addr() const;
  Address peer_addr() const;
  uint16_t src_port() const { return local_addr().port; }
  uint16_t dst_port() const { return peer_addr().port; }
  // Of the device that the id was bound to; none before that.
  std::optional<uint32_t> device_index() const;
  PortSpace port_space() const noexcept;
  bool is_sync() const;
  void* context() const noexcept { return context_; }
  void set_context(void* context) noexcept { context_ = context; }
  uint64_t handle() const noexcept;
  QueuePair qp() const;
  SharedReceiveQueue srq() const;  // of CreateSrq; may be none
  // That of the QP or the SRQ, or the default one of the device. Errors: FailedPrecondition (bound to no device yet).
  absl::StatusOr<ProtectionDomain> pd() const;
  // The last event of a synchronous id (rdma_cm_id.event), until the next call; may be null.
  const CmEvent* event() const noexcept { return event_.get(); }

  // Registration in pd().
  absl::StatusOr<MemoryRegion> RegMsgs(const void* addr, size_t length_bytes) const;
  absl::StatusOr<MemoryRegion> RegRead(const void* addr, size_t length_bytes) const;
  absl::StatusOr<MemoryRegion> RegWrite(const void* addr, size_t length_bytes) const;

  // Waits for the next completion of the QP's send or receive queue (rdma_get_send_comp, rdma_get_recv_comp). Only for
  // QPs whose CQs CreateQp made. Errors: DeadlineExceeded. A Wc in error is returned, not an error.
  absl::StatusOr<Wc> GetSendComp(absl::Duration timeout = absl::InfiniteDuration());
  absl::StatusOr<Wc> GetRecvComp(absl::Duration timeout = absl::InfiniteDuration());

  CmId(std::shared_ptr<sdk::IdState> state, void* context) noexcept;
  const std::shared_ptr<sdk::IdState>& state() const noexcept { return state_; }

 private:
  // Of a synchronous id: waits for the event that ends the call, and keeps it. Asynchronous: nothing to do.
  absl::Status Complete(CmEventType expected);
  absl::Status Complete(CmEventType expected, sdk::Deadline deadline);
  absl::StatusOr<std::shared_ptr<sdk::PdState>> PdFor(const ProtectionDomain* pd, const char* operation) const;

  std::shared_ptr<sdk::IdState> state_;
  void* context_ = nullptr;
  std::unique_ptr<CmEvent> event_;
  // Of a passive CreateEp, for GetRequest.
  std::optional<ProtectionDomain> ep_pd_;
  std::optional<QpInit> ep_init_;
};

}  // namespace rdmad
