// A datagram QP of a SoftHost with PD, CQs, a buffer, and receives posted, in kRts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/device.h"
#include "daemon/wire/grh.h"
#include "daemon/wire/ids.h"
#include "proto/shm/work_queue.h"
#include "tests/device/soft/soft_host.h"

namespace rdmad::soft::testing {

inline constexpr uint32_t kUdQkey = 0x22222222;

class UdEnd {
 public:
  static constexpr uint32_t kReceives = 16;
  static constexpr uint32_t kReceiveBytes = 2048;

  explicit UdEnd(SoftHost& host, uint32_t qkey = kUdQkey, uint32_t engine = 0)
      : buffer(kReceiveBytes * (kReceives + 1)), device_(host.device()), engine_(engine) {
    pd = *device_.AllocPd();
    cq = *device_.CreateCq(256, &sends);
    recv_cq = *device_.CreateCq(256, &receives);
    mr = *device_.RegisterMr(
        *pd, {buffer.data(), buffer.size(), reinterpret_cast<uint64_t>(buffer.data()),
              device::kAccessLocalWrite},
        engine);
    device::QpInit init;
    init.type = device::QpType::kUd;
    init.send_cq = cq.get();
    init.recv_cq = recv_cq.get();
    init.cap = {64, kReceives, 1, 1, 0};
    qp = *device_.CreateQp(*pd, init, engine);
    for (device::EngineObject* one : Objects()) one->Activate(MonotonicNow());
    device::QpAttr attr;
    attr.mask =
        device::kQpAttrState | device::kQpAttrPkeyIndex | device::kQpAttrPort | device::kQpAttrQkey;
    attr.state = device::QpState::kInit;
    attr.qkey = qkey;
    EXPECT_EQ(qp->Modify(attr, 0), device::QpResult::kOk);
    attr.mask = device::kQpAttrState;
    attr.state = device::QpState::kRtr;
    EXPECT_EQ(qp->Modify(attr, 0), device::QpResult::kOk);
    attr.mask = device::kQpAttrState | device::kQpAttrSqPsn;
    attr.state = device::QpState::kRts;
    EXPECT_EQ(qp->Modify(attr, 0), device::QpResult::kOk);
    for (uint32_t i = 0; i < kReceives; ++i) PostReceive(i);
  }
  ~UdEnd() {
    while (!groups_.empty()) Leave();
    if (ah_ != nullptr) ah_->Deactivate(0);
    std::vector<device::EngineObject*> objects = Objects();
    std::reverse(objects.begin(), objects.end());
    for (device::EngineObject* one : objects) {
      one->Deactivate(0);
    }
  }

  absl::Status Join(const std::string& group) {
    auto attached = device_.AttachMulticast(*qp, *IpAddress::Parse(group), engine_);
    if (!attached.ok()) return attached.status();
    (*attached)->Activate(MonotonicNow());
    groups_.push_back(std::move(*attached));
    return absl::OkStatus();
  }
  // The group joined last.
  void Leave() {
    groups_.back()->Deactivate(MonotonicNow());
    groups_.pop_back();
  }

  device::PostResult Send(const std::string& dest, uint32_t dest_qpn, const std::string& text,
                          uint32_t sgid_index = 0) {
    if (ah_ != nullptr) ah_->Deactivate(0);
    auto ah = device_.CreateAh(*pd, {.dest = *IpAddress::Parse(dest), .sgid_index = sgid_index});
    EXPECT_TRUE(ah.ok()) << ah.status();
    if (!ah.ok()) return device::PostResult::kBadOpcode;
    ah_ = std::move(*ah);
    ah_->Activate(0);
    std::byte* const at = &buffer[kReceiveBytes * kReceives];
    std::memcpy(at, text.data(), text.size());
    const device::Sge sge{reinterpret_cast<uint64_t>(at), static_cast<uint32_t>(text.size()),
                          mr->lkey()};
    device::SendWr wr{};
    wr.opcode = device::WrOpcode::kSend;
    wr.flags = shm::kWorkSignaled;
    wr.sges = {&sge, 1};
    wr.ah = ah_.get();
    wr.remote_qpn = dest_qpn;
    wr.remote_qkey = kUdQkey;
    return qp->PostSend(wr, MonotonicNow());
  }
  device::PostResult SendToGroup(const std::string& group, const std::string& text,
                                 uint32_t sgid_index = 0) {
    return Send(group, wire::kMulticastQpn.value(), text, sgid_index);
  }
  // What receive `index` completed with, behind the GRH.
  std::string Text(size_t index) const {
    const device::Wc& wc = receives.all.at(index);
    return {reinterpret_cast<const char*>(&buffer[wc.wr_id * kReceiveBytes + wire::kGrhBytes]),
            wc.byte_len - wire::kGrhBytes};
  }
  const uint8_t* GrhOf(size_t index) const {
    return reinterpret_cast<const uint8_t*>(&buffer[receives.all.at(index).wr_id * kReceiveBytes]);
  }

  std::vector<std::byte> buffer;
  WcRecorder sends;
  WcRecorder receives;
  std::unique_ptr<device::Pd> pd;
  std::unique_ptr<device::Cq> cq;
  std::unique_ptr<device::Cq> recv_cq;
  std::unique_ptr<device::Mr> mr;
  std::unique_ptr<device::Qp> qp;

 private:
  std::vector<device::EngineObject*> Objects() {
    return {pd.get(), cq.get(), recv_cq.get(), mr.get(), qp.get()};
  }
  void PostReceive(uint32_t slot) {
    const device::Sge sge{reinterpret_cast<uint64_t>(&buffer[slot * kReceiveBytes]), kReceiveBytes,
                          mr->lkey()};
    EXPECT_EQ(qp->PostRecv({slot, {&sge, 1}}, 0), device::PostResult::kOk);
  }

  SoftDevice& device_;
  const uint32_t engine_;
  std::unique_ptr<device::Ah> ah_;
  std::vector<std::unique_ptr<device::EngineObject>> groups_;
};

}  // namespace rdmad::soft::testing
