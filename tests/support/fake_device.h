// A device::Device that moves no bytes over any wire: for tests of what stands above devices.
//
// A FakeQp is connected to another one, or to itself, and a send is matched with the peer's oldest
// receive in the next DoWork() of the FakeDataPath. Sends without a receive wait for one. Bytes are
// copied between the addresses that the SGEs name, unless FakeDataPath::copy_bytes is off. Every
// operation but sends completes without effect. Completions, counts and flushing are as device.h
// asks; states change as they are told to.
//
// Thread: as in device.h. Nothing is checked that a test does not need.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/check.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/device.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::testing {

class FakeQp;

class FakeDataPath final : public device::DataPath {
 public:
  FakeDataPath() : wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), fds_{wake_fd_.get()} {}

  int DoWork(device::TimeNs now) noexcept override;
  device::TimeNs NextDeadline(device::TimeNs now) noexcept override {
    deadline_asked.fetch_add(1, std::memory_order_relaxed);
    return std::max(now, deadline);
  }
  std::span<const int> PollFds() const noexcept override { return fds_; }
  uint32_t PollFdsGeneration() const noexcept override { return generation; }

  // Makes the path's descriptor readable, as a packet would. Any thread.
  void Poke() {
    poked_.store(true, std::memory_order_release);
    const uint64_t one = 1;
    RD_CHECK(::write(wake_fd_.get(), &one, sizeof(one)) == sizeof(one));
  }
  void SetPollFds(std::vector<int> fds) {
    fds_ = std::move(fds);
    ++generation;
  }
  int wake_fd() const noexcept { return wake_fd_.get(); }
  void NoteRetired(const char* kind) noexcept {
    if (retired != nullptr) retired->emplace_back(kind);
  }

  std::vector<std::string>* retired = nullptr;  // kinds of objects, as they are deactivated
  bool copy_bytes = true;
  uint32_t max_sends_per_turn = UINT32_MAX;
  device::TimeNs deadline = device::kNever;  // of a timer; DoWork() at or after it resets it
  uint32_t generation = 1;
  std::atomic<uint64_t> deadline_asked{0};
  std::atomic<uint64_t> timers_fired{0};
  std::atomic<uint64_t> pokes{0};

 private:
  friend class FakeQp;
  UniqueFd wake_fd_;
  std::atomic<bool> poked_{false};  // spares a system call per turn
  std::vector<int> fds_;
  std::vector<FakeQp*> active_;  // with sends that could move
};

class FakeCq final : public device::Cq {
 public:
  explicit FakeCq(device::CompletionSink* the_sink) : sink(the_sink) {}
  void Activate(device::TimeNs) noexcept override { active = true; }
  void Deactivate(device::TimeNs) noexcept override { active = false; }

  device::CompletionSink* const sink;
  bool active = false;
};

class FakeSrq final : public device::Srq {
 public:
  explicit FakeSrq(FakeDataPath* path = nullptr, const device::SrqInit& init = {64, 4, 0})
      : path_(path), init_(init) {}
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {
    if (path_ != nullptr) path_->NoteRetired("srq");
  }
  device::PostResult PostRecv(const device::RecvWr& wr) noexcept override {
    if (result == device::PostResult::kOk) wr_ids.push_back(wr.wr_id);
    return result;
  }
  device::QpResult SetLimit(uint32_t limit) noexcept override {
    if (limit_result == device::QpResult::kOk) limit_ = limit;
    return limit_result;
  }
  uint32_t limit() const noexcept override { return limit_; }
  uint32_t max_wr() const noexcept override { return init_.max_wr; }
  uint32_t max_sge() const noexcept override { return init_.max_sge; }
  void SetReceiveSource(device::ReceiveSource* its) noexcept override { source = its; }
  const device::SrqInit& init() const noexcept { return init_; }

  std::deque<uint64_t> wr_ids;
  device::ReceiveSource* source = nullptr;
  device::PostResult result = device::PostResult::kOk;
  device::QpResult limit_result = device::QpResult::kOk;

 private:
  FakeDataPath* const path_;
  const device::SrqInit init_;
  uint32_t limit_ = 0;
};

// What a test tells of the slow parts of objects, and what it sees of them.
struct FakeSlowness {
  bool slow = false;
  absl::Status result;  // of Prepare()
  int objects = 0;      // that are there
  int prepared = 0;
  int released = 0;
};

// The slow part of an object.
template <typename Base>
class FakeSlowObject : public Base {
 public:
  explicit FakeSlowObject(FakeSlowness* slowness) : slowness_(slowness) {
    if (slowness_ != nullptr) ++slowness_->objects;
  }
  ~FakeSlowObject() override {
    if (slowness_ != nullptr) --slowness_->objects;
  }
  bool slow() const noexcept override { return slowness_ != nullptr && slowness_->slow; }
  absl::Status Prepare() override {
    if (slowness_ == nullptr) return absl::OkStatus();
    ++slowness_->prepared;
    return slowness_->result;
  }
  void Release() noexcept override {
    if (slowness_ != nullptr) ++slowness_->released;
  }

 private:
  FakeSlowness* const slowness_;
};

class FakeAh final : public FakeSlowObject<device::Ah> {
 public:
  FakeAh(FakeDataPath* path, const device::AddressVector& the_av, FakeSlowness* slowness = nullptr)
      : FakeSlowObject(slowness), av(the_av), path_(path) {}
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override { path_->NoteRetired("ah"); }

  const device::AddressVector av;

 private:
  FakeDataPath* const path_;
};

class FakeMw final : public device::Mw {
 public:
  FakeMw(FakeDataPath* path, uint32_t key) : path_(path), key_(key) {}
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override { path_->NoteRetired("mw"); }
  uint32_t rkey() const noexcept override { return key_; }

 private:
  FakeDataPath* const path_;
  const uint32_t key_;
};

// A QP in a multicast group; `groups` holds those that are attached now.
class FakeAttachment final : public device::EngineObject {
 public:
  FakeAttachment(FakeDataPath* path, std::multiset<IpAddress>* groups, const IpAddress& group)
      : path_(path), groups_(groups), at_(groups->insert(group)) {}
  ~FakeAttachment() override { groups_->erase(at_); }
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override { path_->NoteRetired("multicast"); }

 private:
  FakeDataPath* const path_;
  std::multiset<IpAddress>* const groups_;
  const std::multiset<IpAddress>::iterator at_;
};

class FakeQp final : public device::Qp {
 public:
  struct Send {
    uint64_t wr_id;
    device::WrOpcode opcode;
    uint8_t flags;
    uint32_t imm_be;
    uint32_t bytes;
    std::vector<device::Sge> sges;
    device::InlineData inline_data;
    const device::Ah* ah = nullptr;
    device::WcStatus verdict = device::WcStatus::kSuccess;
  };
  struct Recv {
    uint64_t wr_id;
    std::vector<device::Sge> sges;
  };

  FakeQp(FakeDataPath* path, uint32_t the_qpn, const device::QpInit& init)
      : path_(path), init_(init), qpn_(the_qpn) {}

  uint32_t qpn() const noexcept override { return qpn_; }
  const device::QpCap& cap() const noexcept override { return init_.cap; }
  const device::QpInit& init() const noexcept { return init_; }
  bool same_daemon() const noexcept override { return true; }
  void Activate(device::TimeNs) noexcept override { active = true; }
  void Deactivate(device::TimeNs) noexcept override {
    path_->NoteRetired("qp");
    active = false;
    sends.clear();
    recvs.clear();
    std::erase(path_->active_, this);
  }

  device::PostResult PostSend(const device::SendWr& wr, device::TimeNs) noexcept override {
    RD_CHECK(active, "posted to a QP that is not active");
    ++send_posts;
    if (const auto result = Scripted(send_results); result != device::PostResult::kOk)
      return result;
    if (state != device::QpState::kRts && state != device::QpState::kErr) {
      return device::PostResult::kWrongState;
    }
    if (sends.size() >= init_.cap.max_send_wr) return device::PostResult::kQueueFull;
    uint32_t bytes = wr.inline_bytes;
    for (const device::Sge& sge : wr.sges) bytes += sge.length_bytes;
    sends.push_back({wr.wr_id,
                     wr.opcode,
                     wr.flags,
                     wr.imm_be,
                     bytes,
                     {wr.sges.begin(), wr.sges.end()},
                     wr.inline_data,
                     wr.ah,
                     wr.verdict});
    if (state == device::QpState::kErr) {
      Flush();
    } else {
      Wake();
    }
    return device::PostResult::kOk;
  }

  device::PostResult PostRecv(const device::RecvWr& wr, device::TimeNs) noexcept override {
    RD_CHECK(active, "posted to a QP that is not active");
    if (const auto result = Scripted(recv_results); result != device::PostResult::kOk)
      return result;
    if (state == device::QpState::kReset) return device::PostResult::kWrongState;
    if (recvs.size() >= init_.cap.max_recv_wr) return device::PostResult::kQueueFull;
    recvs.push_back({wr.wr_id, {wr.sges.begin(), wr.sges.end()}});
    if (state == device::QpState::kErr) {
      Flush();
    } else if (peer != nullptr) {
      peer->Wake();
    }
    return device::PostResult::kOk;
  }

  device::QpResult Modify(const device::QpAttr& attr, device::TimeNs) noexcept override {
    modified_to.push_back(attr.state);
    if ((attr.mask & device::kQpAttrState) == 0) return device::QpResult::kOk;
    state = attr.state;
    if (state == device::QpState::kErr) Flush();
    if (state == device::QpState::kReset) {
      sends.clear();
      recvs.clear();
      done_sends = 0;
    }
    if (state == device::QpState::kRts) Wake();
    return device::QpResult::kOk;
  }

  device::QpAttr Known() const noexcept override {
    const device::QpAttr known = Query();
    --queries;
    return known;
  }
  device::QpAttr Query() const noexcept override {
    ++queries;
    device::QpAttr attr;
    attr.state = attr.current_state = state;
    attr.dest_qpn = peer == nullptr ? 0 : peer->qpn_;
    return attr;
  }

  // Moves sends to the peer's receives. Returns how many.
  uint32_t Run(uint32_t budget) noexcept {
    uint32_t moved = 0;
    while (moved < budget && state == device::QpState::kRts && !sends.empty()) {
      const Send& send = sends.front();
      if (send.verdict != device::WcStatus::kSuccess) {
        CompleteSend(send.verdict);
        state = device::QpState::kErr;
        Flush();
        break;
      }
      const bool takes_receive = send.opcode <= device::WrOpcode::kSendWithInv;
      if (takes_receive) {
        if (peer == nullptr || peer->recvs.empty()) break;
        Deliver(send);
      }
      CompleteSend(device::WcStatus::kSuccess);
      ++moved;
    }
    return moved;
  }

  void SetReceiveSource(device::ReceiveSource* its) noexcept override { source = its; }

  FakeQp* peer = nullptr;
  device::ReceiveSource* source = nullptr;
  mutable int queries = 0;  // of Query()
  bool copy_bytes = true;  // false: the addresses of its WRs are not to be believed
  device::QpState state = device::QpState::kReset;
  bool active = false;
  std::deque<Send> sends;  // taken and not completed
  std::deque<Recv> recvs;
  uint32_t done_sends = 0;  // Wc::wqe_count
  uint64_t send_posts = 0;
  std::vector<device::QpState> modified_to;
  // What the next posts shall return; afterwards kOk.
  std::deque<device::PostResult> send_results;
  std::deque<device::PostResult> recv_results;

 private:
  friend class FakeDataPath;

  static device::PostResult Scripted(std::deque<device::PostResult>& results) {
    if (results.empty()) return device::PostResult::kOk;
    const device::PostResult result = results.front();
    results.pop_front();
    return result;
  }

  void Wake() {
    if (in_active_ || sends.empty()) return;
    in_active_ = true;
    path_->active_.push_back(this);
  }

  void Deliver(const Send& send) {
    const Recv& recv = peer->recvs.front();
    if (path_->copy_bytes && copy_bytes) CopyBytes(send, recv);
    device::Wc wc{};
    wc.wr_id = recv.wr_id;
    wc.opcode = device::WcOpcode::kRecv;
    wc.flags = shm::kCqeRecvQueue;
    wc.solicited = (send.flags & shm::kWorkSolicited) != 0;
    wc.byte_len = send.bytes;
    if (send.opcode == device::WrOpcode::kSendWithImm) {
      wc.flags |= shm::kCqeWithImm;
      wc.imm_be = send.imm_be;
    }
    wc.qpn = peer->qpn_;
    wc.qp_cookie = peer->init_.cookie;
    peer->recvs.pop_front();
    static_cast<FakeCq*>(peer->init_.recv_cq)->sink->OnCompletion(wc);
  }

  static void CopyBytes(const Send& send, const Recv& recv) {
    std::vector<std::byte> bytes;
    for (const auto& piece : send.inline_data.pieces) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
    for (const device::Sge& sge : send.sges) {
      const std::byte* const from = reinterpret_cast<const std::byte*>(sge.addr);
      bytes.insert(bytes.end(), from, from + sge.length_bytes);
    }
    size_t done = 0;
    for (const device::Sge& sge : recv.sges) {
      const size_t count = std::min<size_t>(sge.length_bytes, bytes.size() - done);
      if (count != 0) std::memcpy(reinterpret_cast<void*>(sge.addr), &bytes[done], count);
      done += count;
    }
  }

  void CompleteSend(device::WcStatus status) {
    const Send& send = sends.front();
    ++done_sends;
    device::Wc wc{};
    wc.wr_id = send.wr_id;
    wc.status = status;
    wc.opcode = device::WcOpcode::kSend;
    wc.qpn = qpn_;
    wc.wqe_count = done_sends;
    wc.qp_cookie = init_.cookie;
    const bool said = status != device::WcStatus::kSuccess || init_.signal_all ||
                      (send.flags & shm::kWorkSignaled) != 0;
    sends.pop_front();
    if (said) static_cast<FakeCq*>(init_.send_cq)->sink->OnCompletion(wc);
  }

  void Flush() {
    while (!sends.empty()) CompleteSend(device::WcStatus::kWrFlushErr);
    while (!recvs.empty()) {
      device::Wc wc{};
      wc.wr_id = recvs.front().wr_id;
      wc.status = device::WcStatus::kWrFlushErr;
      wc.opcode = device::WcOpcode::kRecv;
      wc.flags = shm::kCqeRecvQueue;
      wc.qpn = qpn_;
      wc.qp_cookie = init_.cookie;
      recvs.pop_front();
      static_cast<FakeCq*>(init_.recv_cq)->sink->OnCompletion(wc);
    }
  }

  FakeDataPath* const path_;
  const device::QpInit init_;
  const uint32_t qpn_;
  bool in_active_ = false;
};

inline int FakeDataPath::DoWork(device::TimeNs now) noexcept {
  int work = 0;
  uint64_t count;
  if (poked_.exchange(false, std::memory_order_acquire) &&
      ::read(wake_fd_.get(), &count, sizeof(count)) == sizeof(count)) {
    pokes.fetch_add(1, std::memory_order_relaxed);
    ++work;
  }
  if (now >= deadline) {
    deadline = device::kNever;
    timers_fired.fetch_add(1, std::memory_order_relaxed);
    ++work;
  }
  if (active_.empty()) return work;
  const std::vector<FakeQp*> turn = std::exchange(active_, {});
  for (FakeQp* const qp : turn) {
    qp->in_active_ = false;
    const uint32_t moved = qp->Run(max_sends_per_turn);
    work += static_cast<int>(moved);
    if (moved == max_sends_per_turn) qp->Wake();
  }
  return work;
}

class FakePd final : public device::Pd {
 public:
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
};

class FakeMr final : public FakeSlowObject<device::Mr> {
 public:
  explicit FakeMr(uint32_t key, FakeSlowness* slowness = nullptr)
      : FakeSlowObject(slowness), key_(key) {}
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
  uint32_t lkey() const noexcept override { return key_; }
  uint32_t rkey() const noexcept override { return key_; }

 private:
  const uint32_t key_;
};

// Of a region or window on a further engine.
class FakePart final : public device::EngineObject {
 public:
  explicit FakePart(int* active) : active_(active) {}
  void Activate(device::TimeNs) noexcept override { ++*active_; }
  void Deactivate(device::TimeNs) noexcept override { --*active_; }

 private:
  int* const active_;
};

class FakeDevice final : public device::Device {
 public:
  class FakeContext final : public device::Context {
   public:
    FakeContext(FakeDevice& device, FakeDataPath* path) : device_(device), path_(path) {}
    void Activate(device::TimeNs) noexcept override {}
    void Deactivate(device::TimeNs) noexcept override {}
    absl::StatusOr<std::unique_ptr<device::Pd>> AllocPd() override { return device_.AllocPd(); }
    absl::StatusOr<std::unique_ptr<device::Mr>> RegisterMr(device::Pd&,
                                                           const device::MrInit&) override {
      return device_.RegisterMr();
    }
    absl::StatusOr<std::unique_ptr<device::Cq>> CreateCq(uint32_t,
                                                         device::CompletionSink* sink) override {
      return device_.CreateCq(0, sink);
    }
    absl::StatusOr<std::unique_ptr<device::Srq>> CreateSrq(device::Pd&,
                                                           const device::SrqInit& init) override {
      if (!device_.refusal.ok()) return device_.refusal;
      auto srq = std::make_unique<FakeSrq>(path_, init);
      srq->limit_result = device_.limit_result;
      device_.last_srq = srq.get();
      return srq;
    }
    absl::StatusOr<std::unique_ptr<device::Qp>> CreateQp(device::Pd& pd,
                                                         const device::QpInit& init) override {
      return device_.CreateQp(pd, init, path_);
    }
    absl::StatusOr<std::unique_ptr<device::Ah>> CreateAh(device::Pd&,
                                                         const device::AddressVector& av) override {
      if (!device_.refusal.ok()) return device_.refusal;
      device_.last_av = av;
      return std::make_unique<FakeAh>(device_.path_, av, &device_.slowness);
    }
    absl::StatusOr<std::unique_ptr<device::Mw>> AllocMw(device::Pd&) override {
      if (!device_.refusal.ok()) return device_.refusal;
      return std::make_unique<FakeMw>(device_.path_, device_.next_key_++ << 8);
    }
    absl::StatusOr<std::unique_ptr<device::EngineObject>> AttachMulticast(
        device::Qp&, const IpAddress& group) override {
      if (!device_.refusal.ok()) return device_.refusal;
      return std::make_unique<FakeAttachment>(device_.path_, &device_.groups, group);
    }
    absl::StatusOr<std::unique_ptr<device::Context>> Share(uint32_t engine) override {
      return device_.Open(engine);
    }
    std::unique_ptr<device::EngineObject> PartOf(device::Mr&) override {
      return std::make_unique<FakePart>(&device_.parts);
    }
    std::unique_ptr<device::EngineObject> PartOf(device::Mw&) override {
      return std::make_unique<FakePart>(&device_.parts);
    }
    std::unique_ptr<device::EngineObject> PartOf(device::Ah&) override { return nullptr; }

   private:
    FakeDevice& device_;
    FakeDataPath* const path_;
  };

  explicit FakeDevice(FakeDataPath* path) : path_(path), paths_({path}) {
    attr_.max_qp_wr = 32768;
    attr_.max_sge = 20;
    attr_.max_cqe = 1 << 20;
  }

  const std::string& name() const noexcept override { return name_; }
  const std::string& kind() const noexcept override { return kind_; }
  const std::string& netdev() const noexcept override { return netdev_; }
  const device::DeviceAttr& attr() const noexcept override { return attr_; }
  device::PortAttr QueryPort() const override { return port; }
  std::vector<device::GidEntry> Gids() const override { return {}; }
  std::vector<device::CounterValue> Counters() const override { return {}; }

  // A further engine, and its path.
  void AddPath(FakeDataPath* path) {
    paths_.push_back(path);
    attr_.num_comp_vectors = static_cast<uint32_t>(paths_.size());
  }

  absl::StatusOr<std::unique_ptr<device::Context>> Open(uint32_t engine) override {
    return std::make_unique<FakeContext>(*this, paths_.at(engine));
  }
  absl::StatusOr<std::unique_ptr<device::Pd>> AllocPd() { return std::make_unique<FakePd>(); }
  absl::StatusOr<std::unique_ptr<device::Mr>> RegisterMr() {
    return std::make_unique<FakeMr>(next_key_++, &slowness);
  }
  absl::StatusOr<std::unique_ptr<device::Cq>> CreateCq(uint32_t, device::CompletionSink* sink) {
    return std::make_unique<FakeCq>(sink);
  }
  absl::StatusOr<std::unique_ptr<device::Qp>> CreateQp(device::Pd&, const device::QpInit& init,
                                                       FakeDataPath* path = nullptr) {
    if (!qp_refusal.ok()) return qp_refusal;
    auto qp = std::make_unique<FakeQp>(path != nullptr ? path : path_, next_qpn_++, init);
    last_qp = qp.get();
    return qp;
  }

  device::DeviceAttr& mutable_attr() noexcept { return attr_; }

  device::PortAttr port{.state = device::PortState::kActive};
  absl::Status qp_refusal;
  absl::Status refusal;  // of SRQs, address handles, memory windows and multicast
  FakeSlowness slowness;  // of regions and address handles
  device::QpResult limit_result = device::QpResult::kOk;  // of SRQs that are made from now on
  FakeSrq* last_srq = nullptr;
  FakeQp* last_qp = nullptr;
  device::AddressVector last_av;
  std::multiset<IpAddress> groups;  // that QPs are attached to now
  int parts = 0;                    // that are active now

 private:
  FakeDataPath* const path_;
  std::vector<FakeDataPath*> paths_;  // by engine
  const std::string name_ = "fake0";
  const std::string kind_ = "fake";
  const std::string netdev_;
  device::DeviceAttr attr_;
  uint32_t next_key_ = 1;
  uint32_t next_qpn_ = 2;
};

}  // namespace rdmad::testing
