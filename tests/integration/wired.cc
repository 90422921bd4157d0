#include "tests/integration/wired.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "tests/integration/cm_pair.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kAllRights =
    kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
constexpr uint32_t kFirstPsn = 0xfffff0;  // so that it wraps soon
constexpr uint8_t kTimeoutCode = 14;      // 67 ms

struct Place {
  DeviceInfo device;
  Gid gid;
};

// GIDs, not texts, are compared: an address has several texts.
absl::StatusOr<Place> FindDevice(const Client& client, const std::string& text) {
  RD_ASSIGN_OR_RETURN(const Address address, Address::Parse(text));
  std::array<uint8_t, 16> raw = address.bytes;
  if (address.family == 4) {
    raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::copy_n(address.bytes.begin(), 4, raw.begin() + 12);
  }
  RD_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices, client.GetDevices());
  for (const DeviceInfo& device : devices) {
    for (const Gid& gid : device.gids) {
      if (gid.raw == raw) return Place{device, gid};
    }
  }
  return absl::NotFoundError(absl::StrCat("no device has ", text));
}

}  // namespace

absl::Status AwaitPosted(const QueuePair& qp) {
  // The engine answers at the end of a turn in which it has taken what was posted.
  return qp.Query().status();
}

absl::Status WiredEnd::PostRecv(uint64_t wr_id, size_t offset, size_t length_bytes) {
  RD_RETURN_IF_ERROR(qp.PostRecv(wr_id, memory.data() + offset, length_bytes, &region));
  return qp.type() == QpType::kRc ? absl::OkStatus() : AwaitPosted(qp);
}

absl::StatusOr<WiredEnd> MakeEnd(const Client& client, const std::string& address,
                                 const WiredOptions& options) {
  RD_ASSIGN_OR_RETURN(Place place, FindDevice(client, address));
  const uint32_t device = place.device.index;
  absl::StatusOr<ProtectionDomain> pd =
      options.pd != nullptr ? *options.pd : ProtectionDomain::Alloc(client, device);
  if (!pd.ok()) return pd.status();
  CompletionQueue cq;
  if (options.cq != nullptr) {
    cq = *options.cq;
  } else {
    RD_ASSIGN_OR_RETURN(
        cq, CompletionQueue::Create(client, device, 256, nullptr, nullptr, options.comp_vector));
  }
  RD_ASSIGN_OR_RETURN(Pool pool, Pool::Create(client, WiredEnd::kMemoryBytes));
  RD_ASSIGN_OR_RETURN(Buffer memory, pool.Allocate(WiredEnd::kMemoryBytes));
  RD_ASSIGN_OR_RETURN(MemoryRegion region, pd->Reg(memory.data(), memory.size(), kAllRights));
  QpInit init;
  init.type = options.type;
  init.send_cq = init.recv_cq = cq;
  init.cap = options.cap;
  if (options.srq != nullptr) init.srq = *options.srq;
  RD_ASSIGN_OR_RETURN(QueuePair qp, QueuePair::Create(*pd, init));
  return WiredEnd{
      client, std::move(place.device), std::move(place.gid), *pd, cq, std::move(memory), region,
      qp};
}

absl::Status ToInit(WiredEnd& end) {
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags;
  attr.state = QpState::kInit;
  attr.access_flags = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
  if (end.qp.type() == QpType::kUc) attr.access_flags = kAccessRemoteWrite;
  return end.qp.Modify(attr);
}

absl::Status ToRtr(WiredEnd& end, const WiredEnd& peer, const AddressHandleAttr* way) {
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn;
  attr.state = QpState::kRtr;
  attr.ah = way != nullptr ? *way : WayTo(end, peer);
  attr.path_mtu = std::min(end.device.active_mtu, peer.device.active_mtu);
  attr.dest_qpn = peer.qp.qpn();
  attr.rq_psn = kFirstPsn;
  if (end.qp.type() == QpType::kRc) {
    attr.mask |= kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 10;
  }
  return end.qp.Modify(attr);
}

absl::Status ToRts(WiredEnd& end, const RtsOptions& options) {
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrSqPsn;
  attr.state = QpState::kRts;
  attr.sq_psn = kFirstPsn;
  if (end.qp.type() == QpType::kRc) {
    attr.mask |= kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry | kQpAttrMaxQpRdAtomic;
    attr.timeout = kTimeoutCode;
    attr.retry_count = options.retry_count;
    attr.rnr_retry = options.rnr_retry;
    attr.max_rd_atomic = options.max_rd_atomic;
  }
  return end.qp.Modify(attr);
}

absl::Status Wire(WiredEnd& a, WiredEnd& b) {
  RD_RETURN_IF_ERROR(ToInit(a));
  RD_RETURN_IF_ERROR(ToInit(b));
  RD_RETURN_IF_ERROR(ToRtr(a, b));
  RD_RETURN_IF_ERROR(ToRtr(b, a));
  RD_RETURN_IF_ERROR(ToRts(a));
  return ToRts(b);
}

absl::Status MakeReady(WiredEnd& end, uint32_t qkey) {
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrPkeyIndex | kQpAttrPort | kQpAttrQkey;
  attr.state = QpState::kInit;
  attr.qkey = qkey;
  RD_RETURN_IF_ERROR(end.qp.Modify(attr));
  RD_RETURN_IF_ERROR(MoveTo(end, QpState::kRtr));
  attr.mask = kQpAttrState | kQpAttrSqPsn;
  attr.state = QpState::kRts;
  attr.sq_psn = kFirstPsn;
  return end.qp.Modify(attr);
}

absl::Status MoveTo(WiredEnd& end, QpState state) {
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = state;
  return end.qp.Modify(attr);
}

AddressHandleAttr WayTo(const WiredEnd& from, const WiredEnd& to) {
  AddressHandleAttr ah;
  ah.dest_gid = to.gid.raw;
  ah.sgid_index = from.gid.index;
  return ah;
}

std::string NameOfPath(const ::testing::TestParamInfo<Path>& test) {
  return absl::StrCat(test.param.two_daemons ? "TwoDaemons" : "SameDaemon",
                      test.param.ipv6 ? "Ipv6" : "");
}

void PathTest::SetUp() {
  if (GetParam().ipv6 && Ipv6(0).empty()) GTEST_SKIP() << "no IPv6 addresses here";
  const int passive_index = GetParam().two_daemons ? 1 : 0;
  for (int i = 0; i <= passive_index; ++i) ASSERT_OK(StartDaemon(i, {.log_level = "info"}));
  ASSERT_OK_AND_ASSIGN(Client active, AttachTo(Daemon(0), "active"));
  ASSERT_OK_AND_ASSIGN(Client passive, AttachTo(Daemon(passive_index), "passive"));
  active_ = std::make_unique<Client>(active);
  passive_ = std::make_unique<Client>(passive);
}

void WiredPairTest::MakePair(const WiredOptions& options) {
  ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address(), options));
  ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address(), options));
  a_.emplace(std::move(a));
  b_.emplace(std::move(b));
  ASSERT_OK(Wire(*a_, *b_));
}

void WiredPairTest::ExpectWc(CompletionQueue& cq, uint64_t wr_id, WcStatus status) {
  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(cq));
  EXPECT_EQ(wc.wr_id, wr_id);
  EXPECT_EQ(wc.status, status) << WcStatusString(wc.status);
}

}  // namespace rdmad::testing
