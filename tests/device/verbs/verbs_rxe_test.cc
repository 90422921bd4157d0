// The verbs device's objects on a kernel that has soft RoCE, without a daemon: shared receive
// queues, datagrams, unreliable connections, memory windows and multicast. All ends are queue pairs
// of one context.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/ip_address.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "daemon/device/verbs/verbs_device.h"
#include "proto/shm/completion_queue.h"
#include "proto/shm/work_queue.h"
#include "tests/support/status_testing.h"

namespace rdmad::verbs {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpState;
using device::QpType;
using device::Wc;
using device::WcOpcode;
using device::WcStatus;
using device::WrOpcode;
using std::chrono::steady_clock;

constexpr uint32_t kQkey = 0x1ee7;
constexpr uint32_t kGrhBytes = 40;

// Activated when made, deactivated before it is destroyed.
template <typename T>
class Active {
 public:
  Active() = default;
  explicit Active(std::unique_ptr<T> object) : object_(std::move(object)) { object_->Activate(0); }
  Active(Active&&) = default;
  Active& operator=(Active&& other) {
    reset();
    object_ = std::move(other.object_);
    return *this;
  }
  ~Active() { reset(); }
  void reset() {
    if (object_ != nullptr) object_->Deactivate(0);
    object_.reset();
  }
  T* operator->() const { return object_.get(); }
  T& operator*() const { return *object_; }

 private:
  std::unique_ptr<T> object_;
};

template <typename T>
Active<T> Take(absl::StatusOr<std::unique_ptr<T>> made) {
  EXPECT_OK(made);
  if constexpr (std::is_base_of_v<device::SlowObject, T>) {
    EXPECT_OK((*made)->Prepare());
  }
  return Active<T>(*std::move(made));
}

// device::SendWr with defaults.
struct SendWr {
  uint64_t wr_id = 0;
  WrOpcode opcode = WrOpcode::kSend;
  uint32_t imm_be = 0;
  uint64_t remote_addr = 0;
  uint32_t rkey = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint32_t bind_lkey = 0;
  const device::Ah* ah = nullptr;
  uint32_t remote_qpn = 0;
  uint32_t remote_qkey = 0;
};

class Sink final : public device::CompletionSink, public device::AsyncSink {
 public:
  void OnCompletion(const Wc& wc) noexcept override { wcs.push_back(wc); }
  void OnAsyncEvent(const device::AsyncEvent& event) noexcept override { events.push_back(event); }

  std::vector<Wc> wcs;
  std::vector<device::AsyncEvent> events;
};

class VerbsRxeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    list_ = ibv_get_device_list(nullptr);
    if (list_ == nullptr || *list_ == nullptr) {
      GTEST_SKIP() << "needs a soft-RoCE device: run //tests/device/verbs:verbs_cm_test";
    }
    ASSERT_OK_AND_ASSIGN(path_, VerbsDataPath::Create(&sink_));
    ASSERT_OK_AND_ASSIGN(device_, VerbsDevice::Open(*list_, 1, {path_.get()}));
    for (const device::GidEntry& gid : device_->Gids()) {
      if (gid.address.is_v4()) v4_ = gid;
      if (gid.address.is_v6() && !gid.address.is_link_local()) v6_ = gid;
    }
    context_ = Take(device_->Open(0));
    pd_ = Take(context_->AllocPd());
    cq_ = Take(context_->CreateCq(64, &sink_));
    mr_ = Take(Register());
  }
  void TearDown() override {
    if (list_ != nullptr) ibv_free_device_list(list_);
  }

  absl::StatusOr<std::unique_ptr<device::Mr>> Register() {
    return context_->RegisterMr(*pd_, {.host_addr = bytes_.data(),
                                       .length_bytes = bytes_.size(),
                                       .iova = kIova,
                                       .access = device::kAccessAll});
  }
  Active<device::Qp> MakeQp(QpType type, device::Srq* srq = nullptr) {
    device::QpInit init;
    init.type = type;
    init.send_cq = init.recv_cq = &*cq_;
    init.srq = srq;
    init.cap = {.max_send_wr = 16,
                .max_recv_wr = 16,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_bytes = 64};
    return Take(context_->CreateQp(*pd_, init));
  }
  // `fill` sets what the mask names.
  template <typename Fill>
  void Move(device::Qp& qp, QpState state, uint32_t mask, Fill fill) {
    device::QpAttr attr;
    attr.state = state;
    attr.mask = device::kQpAttrState | mask;
    fill(attr);
    EXPECT_EQ(qp.Modify(attr, 0), device::QpResult::kOk) << static_cast<int>(state);
  }
  void Move(device::Qp& qp, QpState state, uint32_t mask = 0) {
    Move(qp, state, mask, [](device::QpAttr&) {});
  }
  void MakeReady(device::Qp& qp) {  // UD
    Move(qp, QpState::kInit, device::kQpAttrPkeyIndex | device::kQpAttrPort | device::kQpAttrQkey,
         [](device::QpAttr& attr) { attr.qkey = kQkey; });
    Move(qp, QpState::kRtr);
    Move(qp, QpState::kRts, device::kQpAttrSqPsn);
  }
  void Connect(device::Qp& qp, const device::Qp& peer, QpType type) {
    using namespace device;
    const bool rc = type == QpType::kRc;
    Move(qp, QpState::kInit, kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags, [](QpAttr& attr) {
      attr.access_flags = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
    });
    Move(qp, QpState::kRtr,
         kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn |
             (rc ? kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer : 0u),
         [&](QpAttr& attr) {
           attr.dest_qpn = peer.qpn();
           attr.av.dest = v4_.address;
           attr.av.sgid_index = v4_.index;
           attr.max_dest_rd_atomic = 4;
           attr.min_rnr_timer = 12;
         });
    Move(qp, QpState::kRts,
         kQpAttrSqPsn |
             (rc ? kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry | kQpAttrMaxQpRdAtomic : 0u),
         [](QpAttr& attr) {
           attr.max_rd_atomic = 4;
           attr.timeout = 14;
           attr.retry_count = attr.rnr_retry = 7;
         });
  }
  void ConnectPair(device::Qp& a, device::Qp& b, QpType type = QpType::kRc) {
    Connect(a, b, type);
    Connect(b, a, type);
  }

  // The daemon's turns, until `done`; false after five seconds.
  template <typename Done>
  bool Drive(Done done, std::chrono::milliseconds patience = std::chrono::seconds(5)) {
    const auto start = steady_clock::now();
    while (!done()) {
      if (steady_clock::now() - start > patience) return false;
      path_->DoWork(steady_clock::now().time_since_epoch().count());
    }
    return true;
  }
  // All completions of `wr_ids`, in their order.
  std::vector<Wc> Wait(const std::vector<uint64_t>& wr_ids) {
    std::vector<Wc> found;
    for (const uint64_t id : wr_ids) {
      const auto is = [id](const Wc& wc) { return wc.wr_id == id; };
      const auto find = [&] { return std::find_if(sink_.wcs.begin(), sink_.wcs.end(), is); };
      EXPECT_TRUE(Drive([&] { return find() != sink_.wcs.end(); })) << "wr_id " << id;
      Wc missing{};
      missing.status = WcStatus::kGeneralErr;
      found.push_back(find() != sink_.wcs.end() ? *find() : missing);
    }
    return found;
  }
  WcStatus StatusOf(uint64_t wr_id) { return Wait({wr_id})[0].status; }

  // Places in the memory; WRs name them by kIova + offset.
  device::Sge At(uint32_t offset, uint32_t length) const {
    return {kIova + offset, length, mr_->lkey()};
  }
  void Write(uint32_t offset, std::string_view text) {
    std::copy(text.begin(), text.end(), reinterpret_cast<char*>(bytes_.data()) + offset);
  }
  std::string_view Read(uint32_t offset, size_t length) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + offset, length};
  }
  static PostResult Post(device::Qp& qp, const SendWr& from, const device::Sge* sge = nullptr) {
    device::SendWr wr{};
    wr.wr_id = from.wr_id;
    wr.opcode = from.opcode;
    wr.flags = shm::kWorkSignaled;
    if (sge != nullptr) wr.sges = {sge, 1};
    wr.imm_be = from.imm_be;
    wr.remote_addr = from.remote_addr;
    wr.rkey = from.rkey;
    wr.compare_add = from.compare_add;
    wr.swap = from.swap;
    wr.bind_lkey = from.bind_lkey;
    wr.ah = from.ah;
    wr.remote_qpn = from.remote_qpn;
    wr.remote_qkey = from.remote_qkey;
    return qp.PostSend(wr, 0);
  }
  PostResult PostText(device::Qp& qp, uint64_t id, std::string_view text) {
    Write(0, text);
    const device::Sge sge = At(0, static_cast<uint32_t>(text.size()));
    return Post(qp, {.wr_id = id, .opcode = WrOpcode::kSend}, &sge);
  }

  static constexpr uint64_t kIova = 0x7000'0000'0000;

  Sink sink_;
  ibv_device** list_ = nullptr;
  // As kIova, at the beginning of a page.
  struct alignas(4096) Memory : std::array<std::byte, 64 << 10> {};
  const std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  Memory& bytes_ = *memory_;
  std::unique_ptr<VerbsDataPath> path_;
  std::unique_ptr<VerbsDevice> device_;
  device::GidEntry v4_{};
  device::GidEntry v6_{};
  Active<device::Context> context_;
  Active<device::Pd> pd_;
  Active<device::Cq> cq_;
  Active<device::Mr> mr_;
};

TEST_F(VerbsRxeTest, TheDeviceTellsWhatItHas) {
  const device::DeviceAttr& attr = device_->attr();
  EXPECT_GT(attr.max_srq, 0u);
  EXPECT_GT(attr.max_srq_wr, 0u);
  EXPECT_GT(attr.max_srq_sge, 0u);
  EXPECT_GT(attr.max_ah, 0u);
  EXPECT_GT(attr.max_mw, 0u);
  EXPECT_GT(attr.max_mcast_groups, 0u);
  EXPECT_EQ(attr.atomic_capability, 1u);
}

TEST_F(VerbsRxeTest, AnAddressThatComesIsAnEventAndAGid) {
  static_cast<void>(device_->TakeAsyncEvents());  // from before
  const std::string command = "ip address add 10.7.9.9/24 dev " + device_->netdev();
  ASSERT_EQ(std::system(command.c_str()), 0);
  const auto heard = [&] {
    const std::vector<AsyncEventType> events = device_->TakeAsyncEvents();
    return std::find(events.begin(), events.end(), AsyncEventType::kGidChange) != events.end();
  };
  ASSERT_TRUE(Drive(heard));
  const std::vector<device::GidEntry> gids = device_->Gids();
  EXPECT_TRUE(std::any_of(gids.begin(), gids.end(), [](const device::GidEntry& gid) {
    return gid.address == IpAddress::FromV4(10, 7, 9, 9);
  }));
}

TEST_F(VerbsRxeTest, AnSrqFeedsSeveralQpsAndTellsWhenItRunsLow) {
  Active<device::Srq> srq =
      Take(context_->CreateSrq(*pd_, {.max_wr = 8, .max_sge = 1, .owner_token = 7}));
  Active<device::Qp> a = MakeQp(QpType::kRc), b = MakeQp(QpType::kRc);
  Active<device::Qp> to_a = MakeQp(QpType::kRc, &*srq), to_b = MakeQp(QpType::kRc, &*srq);
  ConnectPair(*a, *to_a);
  ConnectPair(*b, *to_b);
  for (uint32_t i = 1; i <= 4; ++i) {
    const device::Sge sge = At(0x1000 * i, 64);
    ASSERT_EQ(srq->PostRecv({i, {&sge, 1}}), PostResult::kOk);
  }
  ASSERT_EQ(srq->SetLimit(3), device::QpResult::kOk);
  ASSERT_EQ(PostText(*b, 11, "to b"), PostResult::kOk);
  ASSERT_EQ(StatusOf(11), WcStatus::kSuccess);
  ASSERT_EQ(PostText(*a, 12, "to a"), PostResult::kOk);
  const std::vector<Wc> wcs = Wait({12, 1, 2});
  EXPECT_EQ(wcs[1].qpn, to_b->qpn());
  EXPECT_EQ(wcs[1].byte_len, 4u);
  EXPECT_EQ(wcs[1].flags, shm::kCqeRecvQueue);
  EXPECT_EQ(wcs[2].qpn, to_a->qpn());
  EXPECT_EQ(Read(0x1000, 4), "to b");
  EXPECT_EQ(Read(0x2000, 4), "to a");
  ASSERT_TRUE(Drive([&] { return !sink_.events.empty(); }));
  EXPECT_EQ(sink_.events[0].type, AsyncEventType::kSrqLimitReached);
  EXPECT_EQ(sink_.events[0].owner_token, 7u);
  EXPECT_EQ(srq->limit(), 0u);
  // A QP that goes leaves the queue to the others.
  to_b.reset();
  ASSERT_EQ(PostText(*a, 13, "more"), PostResult::kOk);
  EXPECT_EQ(Wait({13, 3})[1].qpn, to_a->qpn());
}

TEST_F(VerbsRxeTest, EveryDatagramOfAQpThatFailsCompletesOnceAndInOrder) {
  Active<device::Qp> near = MakeQp(QpType::kUd), far = MakeQp(QpType::kUd);
  MakeReady(*near);
  MakeReady(*far);
  Active<device::Ah> ah =
      Take(context_->CreateAh(*pd_, {.dest = v4_.address, .sgid_index = v4_.index}));
  const device::Sge from = At(0, 1024);
  std::vector<uint64_t> ids;
  for (uint64_t id = 1; id <= 12; ++id) {
    const SendWr wr{.wr_id = id, .ah = &*ah, .remote_qpn = far->qpn(), .remote_qkey = kQkey};
    ASSERT_EQ(Post(*near, wr, &from), PostResult::kOk);
    ids.push_back(id);
  }
  // What names no handle fails, as the engine does it.
  Move(*near, QpState::kErr);
  for (uint64_t id = 13; id <= 15; ++id) {
    ASSERT_EQ(Post(*near, {.wr_id = id}), PostResult::kOk);
    ids.push_back(id);
  }
  ASSERT_TRUE(Drive([&] { return sink_.wcs.size() >= ids.size(); })) << sink_.wcs.size();
  Drive([] { return false; }, std::chrono::milliseconds(50));  // none comes twice
  ASSERT_EQ(sink_.wcs.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(sink_.wcs[i].wr_id, ids[i]);
    EXPECT_TRUE(ids[i] < 13 || sink_.wcs[i].status == WcStatus::kWrFlushErr) << ids[i];
  }
}

TEST_F(VerbsRxeTest, DatagramsGoWhereTheirHandleSays) {
  Active<device::Qp> near = MakeQp(QpType::kUd), far = MakeQp(QpType::kUd);
  MakeReady(*near);
  MakeReady(*far);
  uint64_t id = 100;
  for (const device::GidEntry& gid : {v4_, v6_}) {
    SCOPED_TRACE(gid.address.ToString());
    Active<device::Ah> ah =
        Take(context_->CreateAh(*pd_, {.dest = gid.address, .sgid_index = gid.index}));
    const device::Sge to = At(0x1000, 256), from = At(0, 5);
    Write(0, "hello");
    ASSERT_EQ(far->PostRecv({id, {&to, 1}}, 0), PostResult::kOk);
    ASSERT_EQ(Post(*near,
                   {.wr_id = id + 1,
                    .opcode = WrOpcode::kSendWithImm,
                    .imm_be = 0x11223344,
                    .ah = &*ah,
                    .remote_qpn = far->qpn(),
                    .remote_qkey = kQkey},
                   &from),
              PostResult::kOk);
    const std::vector<Wc> wcs = Wait({id + 1, id});
    EXPECT_EQ(wcs[0].status, WcStatus::kSuccess);
    EXPECT_EQ(wcs[1].status, WcStatus::kSuccess);
    EXPECT_EQ(wcs[1].flags, shm::kCqeRecvQueue | shm::kCqeWithImm | shm::kCqeGrh);
    EXPECT_EQ(wcs[1].imm_be, 0x11223344u);
    EXPECT_EQ(wcs[1].src_qpn, near->qpn());
    EXPECT_EQ(wcs[1].byte_len, kGrhBytes + 5);
    EXPECT_EQ(Read(0x1000 + kGrhBytes, 5), "hello");
    id += 2;
  }
}

TEST_F(VerbsRxeTest, AHandleNeedsAnIndexThatThePortHas) {
  ASSERT_OK_AND_ASSIGN(const auto ah,
                       context_->CreateAh(*pd_, {.dest = v4_.address, .sgid_index = 200}));
  const absl::Status status = ah->Prepare();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

// In the error state a datagram needs no address; it flushes in its turn.
TEST_F(VerbsRxeTest, DatagramsWithoutAHandleAreRefused) {
  Active<device::Qp> qp = MakeQp(QpType::kUd);
  MakeReady(*qp);
  EXPECT_EQ(PostText(*qp, 1, "x"), PostResult::kBadOpcode);
  Move(*qp, QpState::kErr);
  EXPECT_EQ(PostText(*qp, 2, "x"), PostResult::kOk);
  EXPECT_EQ(StatusOf(2), WcStatus::kWrFlushErr);
}

TEST_F(VerbsRxeTest, UnreliableConnectionsSendAndWrite) {
  Active<device::Qp> near = MakeQp(QpType::kUc), far = MakeQp(QpType::kUc);
  ConnectPair(*near, *far, QpType::kUc);
  const device::Sge to = At(0x1000, 64);
  ASSERT_EQ(far->PostRecv({1, {&to, 1}}, 0), PostResult::kOk);
  ASSERT_EQ(PostText(*near, 2, "sent"), PostResult::kOk);
  EXPECT_EQ(StatusOf(2), WcStatus::kSuccess);
  EXPECT_EQ(StatusOf(1), WcStatus::kSuccess);
  EXPECT_EQ(Read(0x1000, 4), "sent");
  ASSERT_EQ(far->PostRecv({3, {}}, 0), PostResult::kOk);
  const device::Sge from = At(0, 4);
  ASSERT_EQ(Post(*near,
                 {.wr_id = 4,
                  .opcode = WrOpcode::kRdmaWriteWithImm,
                  .imm_be = 5,
                  .remote_addr = kIova + 0x2000,
                  .rkey = mr_->rkey()},
                 &from),
            PostResult::kOk);
  const Wc written = Wait({3})[0];
  EXPECT_EQ(written.opcode, WcOpcode::kRecvRdmaWithImm);
  EXPECT_EQ(Read(0x2000, 4), "sent");
}

// ---- memory windows ----

class VerbsRxeWindowTest : public VerbsRxeTest {
 protected:
  void SetUp() override {
    VerbsRxeTest::SetUp();
    if (IsSkipped()) return;
    owner_ = MakeQp(QpType::kRc);
    peer_ = MakeQp(QpType::kRc);
    ConnectPair(*owner_, *peer_);
    window_ = Take(context_->AllocMw(*pd_));
  }
  // Of 256 bytes at 0x1000.
  SendWr Bind(uint64_t id, uint32_t rkey, const device::Mr& mr) {
    return {.wr_id = id,
            .opcode = WrOpcode::kBindMw,
            .imm_be = 0xffff,  // means nothing here
            .remote_addr = kIova + 0x1000,
            .rkey = rkey,
            .compare_add = 256,
            .swap = device::kAccessRemoteWrite,
            .bind_lkey = mr.lkey()};
  }
  // What becomes of a write by the peer.
  WcStatus WriteTo(uint64_t id, uint32_t rkey, uint32_t offset) {
    const device::Sge from = At(0, 8);
    Write(0, "windowed");
    EXPECT_EQ(Post(*peer_,
                   {.wr_id = id,
                    .opcode = WrOpcode::kRdmaWrite,
                    .remote_addr = kIova + offset,
                    .rkey = rkey},
                   &from),
              PostResult::kOk);
    return StatusOf(id);
  }
  static std::string KernelObjects() {
    std::string text;
    std::FILE* const pipe = ::popen("rdma resource show", "r");
    std::array<char, 256> line;
    while (std::fgets(line.data(), line.size(), pipe) != nullptr) text += line.data();
    ::pclose(pipe);
    return text;
  }

  Active<device::Qp> owner_;
  Active<device::Qp> peer_;
  Active<device::Mw> window_;
};

TEST_F(VerbsRxeWindowTest, LetsThePeerInUntilThePeerClosesIt) {
  const uint32_t key = window_->rkey() + 1;
  ASSERT_EQ(Post(*owner_, Bind(1, key, *mr_)), PostResult::kOk);
  const Wc bound = Wait({1})[0];
  ASSERT_EQ(bound.status, WcStatus::kSuccess);
  EXPECT_EQ(bound.opcode, WcOpcode::kBindMw);
  ASSERT_EQ(WriteTo(2, key, 0x1010), WcStatus::kSuccess);
  EXPECT_EQ(Read(0x1010, 8), "windowed");
  const device::Sge to = At(0x3000, 64);
  ASSERT_EQ(owner_->PostRecv({3, {&to, 1}}, 0), PostResult::kOk);
  ASSERT_EQ(Post(*peer_, {.wr_id = 4, .opcode = WrOpcode::kSendWithInv, .imm_be = key}),
            PostResult::kOk);
  const Wc closed = Wait({3})[0];
  EXPECT_EQ(closed.status, WcStatus::kSuccess);
  EXPECT_EQ(closed.flags, shm::kCqeRecvQueue | shm::kCqeWithInv);
  EXPECT_EQ(closed.imm_be, key);
  EXPECT_EQ(WriteTo(5, key, 0x1010), WcStatus::kRemAccessErr);
}

TEST_F(VerbsRxeWindowTest, IsBoundAnewAfterAnInvalidationInOneGo) {
  const uint32_t key = window_->rkey();
  ASSERT_EQ(Post(*owner_, Bind(1, key + 1, *mr_)), PostResult::kOk);
  ASSERT_EQ(Post(*owner_, {.wr_id = 2, .opcode = WrOpcode::kLocalInv, .imm_be = key + 1}),
            PostResult::kOk);
  ASSERT_EQ(Post(*owner_, Bind(3, key + 2, *mr_)), PostResult::kOk);
  for (const Wc& wc : Wait({1, 2, 3})) EXPECT_EQ(wc.status, WcStatus::kSuccess) << wc.wr_id;
  EXPECT_EQ(WriteTo(4, key + 2, 0x1000), WcStatus::kSuccess);
  EXPECT_EQ(WriteTo(5, key + 1, 0x1000), WcStatus::kRemAccessErr);
}

TEST_F(VerbsRxeWindowTest, OutOfItsRegionItCannotBeBound) {
  SendWr wr = Bind(1, window_->rkey(), *mr_);
  wr.compare_add = bytes_.size();
  ASSERT_EQ(Post(*owner_, wr), PostResult::kOk);
  EXPECT_EQ(StatusOf(1), WcStatus::kMwBindErr);
}

// rxe keeps a region, and a QP, while a window is bound to it.
TEST_F(VerbsRxeWindowTest, NothingStaysOfWhatAWindowWasBoundTo) {
  const std::string before = KernelObjects();
  Active<device::Mw> other = Take(context_->AllocMw(*pd_));
  Active<device::Mr> region = Take(Register());
  Active<device::Qp> qp = MakeQp(QpType::kRc), far = MakeQp(QpType::kRc);
  ConnectPair(*qp, *far);
  ASSERT_EQ(Post(*qp, Bind(1, window_->rkey(), *region)), PostResult::kOk);
  ASSERT_EQ(Post(*qp, Bind(2, other->rkey(), *mr_)), PostResult::kOk);
  for (const Wc& wc : Wait({1, 2})) ASSERT_EQ(wc.status, WcStatus::kSuccess) << wc.wr_id;
  region.reset();
  const auto start = steady_clock::now();
  qp.reset();
  EXPECT_LT(steady_clock::now() - start, std::chrono::milliseconds(150)) << "the kernel waited";
  far.reset();
  other.reset();
  EXPECT_EQ(KernelObjects(), before);
  // The window is there, and cannot be bound any more.
  ASSERT_EQ(Post(*owner_, Bind(3, window_->rkey(), *mr_)), PostResult::kOk);
  EXPECT_EQ(StatusOf(3), WcStatus::kMwBindErr);
}

// ---- multicast ----

TEST_F(VerbsRxeTest, AGroupsPacketsReachAllItsMembers) {
  const IpAddress groups[] = {
      IpAddress::FromV4(239, 77, 0, 1),
      IpAddress::FromV6({0xff, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77, 1})};
  uint64_t id = 1;
  for (const IpAddress& group : groups) {
    SCOPED_TRACE(group.ToString());
    const device::GidEntry& gid = group.is_v4() ? v4_ : v6_;
    Active<device::Qp> near = MakeQp(QpType::kUd), far = MakeQp(QpType::kUd);
    MakeReady(*near);
    MakeReady(*far);
    Active<device::EngineObject> first = Take(context_->AttachMulticast(*near, group));
    Active<device::EngineObject> second = Take(context_->AttachMulticast(*far, group));
    Active<device::Ah> ah =
        Take(context_->CreateAh(*pd_, {.dest = group, .sgid_index = gid.index, .hop_limit = 1}));
    const auto send = [&](uint64_t wr_id) {
      const device::Sge from = At(0, 5);
      return Post(*near,
                  {.wr_id = wr_id,
                   .opcode = WrOpcode::kSend,
                   .ah = &*ah,
                   .remote_qpn = 0xffffff,
                   .remote_qkey = kQkey},
                  &from);
    };
    Write(0, "hello");
    const device::Sge near_to = At(0x1000, 256), far_to = At(0x2000, 256);
    ASSERT_EQ(near->PostRecv({id, {&near_to, 1}}, 0), PostResult::kOk);
    ASSERT_EQ(far->PostRecv({id + 1, {&far_to, 1}}, 0), PostResult::kOk);
    ASSERT_EQ(send(id + 2), PostResult::kOk);
    const std::vector<Wc> wcs = Wait({id + 2, id + 1, id});
    for (const Wc& wc : wcs) EXPECT_EQ(wc.status, WcStatus::kSuccess) << wc.wr_id;
    EXPECT_EQ(wcs[1].src_qpn, near->qpn());
    EXPECT_EQ(Read(0x2000 + kGrhBytes, 5), "hello");
    EXPECT_EQ(Read(0x1000 + kGrhBytes, 5), "hello");

    second.reset();
    ASSERT_EQ(near->PostRecv({id + 3, {&near_to, 1}}, 0), PostResult::kOk);
    ASSERT_EQ(far->PostRecv({id + 4, {&far_to, 1}}, 0), PostResult::kOk);
    ASSERT_EQ(send(id + 5), PostResult::kOk);
    EXPECT_EQ(StatusOf(id + 3), WcStatus::kSuccess);
    const size_t heard = sink_.wcs.size();
    EXPECT_FALSE(
        Drive([&] { return sink_.wcs.size() > heard + 1; }, std::chrono::milliseconds(300)));
    id += 10;
  }
}

}  // namespace
}  // namespace rdmad::verbs
