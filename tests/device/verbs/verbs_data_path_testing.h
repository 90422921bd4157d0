// What the tests of the verbs device against FakeIbverbs share: a context with a PD and a CQ, a QP
// of any type, and a sink that writes down.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/verbs/verbs_context.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "proto/shm/completion_queue.h"
#include "tests/device/verbs/fake_ibverbs.h"
#include "tests/support/status_testing.h"

namespace rdmad::verbs {

class RecordingSink final : public device::CompletionSink, public device::AsyncSink {
 public:
  void OnCompletion(const device::Wc& wc) noexcept override { wcs.push_back(wc); }
  void OnAsyncEvent(const device::AsyncEvent& event) noexcept override { events.push_back(event); }
  void OnError() noexcept override { ++errors; }

  // "id:status:wqe_count", of sends; "id:status" of receives.
  std::vector<std::string> Take() {
    std::vector<std::string> taken;
    for (const device::Wc& wc : wcs) {
      std::string text = std::to_string(wc.wr_id) + ":" + std::to_string(int(wc.status));
      if ((wc.flags & shm::kCqeRecvQueue) == 0) text += ":" + std::to_string(wc.wqe_count);
      taken.push_back(text);
    }
    wcs.clear();
    return taken;
  }

  std::vector<device::Wc> wcs;
  std::vector<device::AsyncEvent> events;
  int errors = 0;  // of the CQ
};

using Strings = std::vector<std::string>;

class VerbsObjectsTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(1); }
  void Open(uint8_t port) {
    device::DeviceAttr attr;
    attr.max_qp_wr = 1024;
    attr.max_sge = 4;
    attr.max_cqe = 1024;
    attr.max_msg_bytes = 1 << 20;
    attr.max_mr_bytes = 1 << 30;
    attr.max_srq = attr.max_mw = 16;
    attr.max_srq_wr = 1024;
    attr.max_srq_sge = 4;
    attr.vendor_id = vendor_id_;
    ASSERT_OK_AND_ASSIGN(path_, VerbsDataPath::Create(&sink_));
    ASSERT_OK_AND_ASSIGN(open_, OpenContext::Open(lib_.device(), port, attr, path_.get()));
    context_ = std::make_unique<VerbsContext>(open_, std::vector{path_.get()});
    context_->Activate(now_);
    ASSERT_OK_AND_ASSIGN(pd_, context_->AllocPd());
    ASSERT_OK_AND_ASSIGN(cq_, context_->CreateCq(64, &sink_));
    cq_->Activate(now_);
  }
  // Cap, cookie and owner_token are what the tests below count on.
  void MakeQp(device::QpType type = device::QpType::kRc, device::Srq* srq = nullptr) {
    device::QpInit init;
    init.type = type;
    init.srq = srq;
    init.send_cq = init.recv_cq = cq_.get();
    init.cap = {.max_send_wr = 8,
                .max_recv_wr = 4,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_bytes = 64};
    init.cookie = 5;
    init.owner_token = 99;
    ASSERT_OK_AND_ASSIGN(qp_, context_->CreateQp(*pd_, init));
    qp_->Activate(now_);
  }
  void TearDown() override {
    DropQp();
    cq_->Deactivate(now_);
    context_->Deactivate(now_);
    cq_.reset();
    pd_.reset();
    context_.reset();
    open_.reset();
    EXPECT_EQ(lib_.open_objects, 0) << "everything was given back";
  }
  void DropQp() {
    if (qp_ == nullptr) return;
    qp_->Deactivate(now_);
    qp_.reset();
  }

  void Move(device::QpState state) {
    device::QpAttr attr;
    attr.mask = device::kQpAttrState;
    attr.state = state;
    EXPECT_EQ(qp_->Modify(attr, now_), device::QpResult::kOk);
  }
  void MoveToRts() {
    using enum device::QpState;
    for (const device::QpState state : {kInit, kRtr, kRts}) Move(state);
  }
  device::PostResult Send(uint64_t id, uint8_t flags = shm::kWorkSignaled) {
    device::SendWr wr{};
    wr.wr_id = id;
    wr.opcode = device::WrOpcode::kSend;
    wr.flags = flags;
    return qp_->PostSend(wr, now_);
  }
  device::PostResult Recv(uint64_t id) { return qp_->PostRecv({id, {}}, now_); }
  int Turn() { return path_->DoWork(now_ += 10'000); }

  uint32_t vendor_id_ = 0;
  testing::FakeIbverbs lib_;
  RecordingSink sink_;
  device::TimeNs now_ = 1'000'000;
  std::unique_ptr<VerbsDataPath> path_;
  std::shared_ptr<OpenContext> open_;
  std::unique_ptr<VerbsContext> context_;
  std::unique_ptr<device::Pd> pd_;
  std::unique_ptr<device::Cq> cq_;
  std::unique_ptr<device::Qp> qp_;
};

}  // namespace rdmad::verbs
