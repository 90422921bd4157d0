// Ends that a test makes and moves by itself, without a connection manager (ibv_modify_qp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdmad/rdmad.h"
#include "tests/integration/testbed.h"

namespace rdmad::testing {

// A QP on the device that has some address, its CQ, and memory that is registered with every right.
struct WiredEnd {
  static constexpr size_t kMemoryBytes = 64 * 1024;

  Client client;
  DeviceInfo device;
  Gid gid;  // of the address
  ProtectionDomain pd;
  CompletionQueue cq;
  Buffer memory;
  MemoryRegion region;
  QueuePair qp;

  uint64_t AddressAt(size_t offset) const {
    return reinterpret_cast<uintptr_t>(memory.data() + offset);
  }
  // The device's parts of the memory, for posts: receives at the beginning, sends in the second
  // half. UC and UD: AwaitPosted, too.
  absl::Status PostRecv(uint64_t wr_id, size_t offset, size_t length_bytes);
};

// What was posted to `qp` is with its device. A sender that nobody makes wait (UC, UD) may be
// faster than the engine that takes a receive from the ring.
absl::Status AwaitPosted(const QueuePair& qp);

struct WiredOptions {
  QpType type = QpType::kRc;
  QpCap cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_inline_bytes = 64};
  const SharedReceiveQueue* srq = nullptr;  // with `pd`
  const ProtectionDomain* pd = nullptr;     // else one of its own
  const CompletionQueue* cq = nullptr;      // else one of its own, of `comp_vector`
  uint32_t comp_vector = 0;
};

// In state Reset. Errors: NotFound (no device has `address`), those of the calls.
absl::StatusOr<WiredEnd> MakeEnd(const Client& client, const std::string& address,
                                 const WiredOptions& options = {});

// RC or UC: both ends to RTS, each the other's peer.
absl::Status Wire(WiredEnd& a, WiredEnd& b);
// The steps of that: Reset to Init, to RTR, to RTS.
absl::Status ToInit(WiredEnd& end);
// By `way` instead of WayTo(), if given.
absl::Status ToRtr(WiredEnd& end, const WiredEnd& peer, const AddressHandleAttr* way = nullptr);
struct RtsOptions {
  uint8_t max_rd_atomic = 4;
  uint8_t rnr_retry = 7;
  uint8_t retry_count = 7;  // which rxe, unlike the specification, takes for ever
};
absl::Status ToRts(WiredEnd& end, const RtsOptions& options = {});
// UD: from Reset to RTS.
absl::Status MakeReady(WiredEnd& end, uint32_t qkey);
// Any state.
absl::Status MoveTo(WiredEnd& end, QpState state);

// How `from` reaches `to`.
AddressHandleAttr WayTo(const WiredEnd& from, const WiredEnd& to);

// Between two daemons, or within one; over IPv4 or IPv6.
struct Path {
  bool two_daemons;
  bool ipv6;
};
std::string NameOfPath(const ::testing::TestParamInfo<Path>& test);
inline constexpr Path kIpv4Paths[] = {{true, false}, {false, false}};
inline constexpr Path kAllPaths[] = {{true, false}, {false, false}, {true, true}, {false, true}};

// Applications "active" and "passive", each with an address.
class PathTest : public LoopbackTest, public ::testing::WithParamInterface<Path> {
 protected:
  void SetUp() override;

  const Client& active() const { return *active_; }
  const Client& passive() const { return *passive_; }
  std::string active_address() const { return AddressOf(0); }
  // On verbs within one daemon that of the other device: packets are to cross the wire.
  std::string passive_address() const {
    return AddressOf(GetParam().two_daemons || OnVerbs() ? 1 : 0);
  }

 private:
  std::string AddressOf(int index) const { return GetParam().ipv6 ? Ipv6(index) : Ipv4(index); }

  std::unique_ptr<Client> active_;
  std::unique_ptr<Client> passive_;
};

// Two wired ends: `a_` of the active application, `b_` of the passive one.
class WiredPairTest : public PathTest {
 protected:
  void MakePair(const WiredOptions& options = {});
  // The next completion of `cq`.
  static void ExpectWc(CompletionQueue& cq, uint64_t wr_id, WcStatus status = WcStatus::kSuccess);

  std::optional<WiredEnd> a_;
  std::optional<WiredEnd> b_;
};

}  // namespace rdmad::testing
