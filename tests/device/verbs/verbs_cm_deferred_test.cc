// What becomes of a listener of before the host's first RDMA device when the kernel can make its id
// and refuses it. A librdmacm that does as it is told stands in for the real one.
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/verbs/verbs_connection_manager.h"
#include "tests/support/status_testing.h"

namespace {

int bind_error = 0;
int open_ids = 0;

}  // namespace

extern "C" {

rdma_event_channel* rdma_create_event_channel() {
  return new rdma_event_channel{::eventfd(0, EFD_CLOEXEC)};
}
void rdma_destroy_event_channel(rdma_event_channel* channel) {
  ::close(channel->fd);
  delete channel;
}
int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context, rdma_port_space ps) {
  *id = new rdma_cm_id{};
  (*id)->channel = channel;
  (*id)->context = context;
  (*id)->ps = ps;
  ++open_ids;
  return 0;
}
int rdma_destroy_id(rdma_cm_id* id) {
  delete id;
  --open_ids;
  return 0;
}
int rdma_bind_addr(rdma_cm_id* id, sockaddr* address) {
  errno = bind_error;
  if (bind_error != 0) return -1;
  id->route.addr.src_sin = *reinterpret_cast<sockaddr_in*>(address);
  return 0;
}
int rdma_listen(rdma_cm_id*, int) {
  return 0;
}

}  // extern "C"

namespace rdmad::verbs {
namespace {

class NoDevices final : public DeviceFinder {
 public:
  device::Device* FindPort(std::string_view, uint8_t) const override { return nullptr; }
  device::Device* FindByAddress(const IpAddress&) const override { return nullptr; }
};

class DeferredListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(manager_, VerbsConnectionManager::Create(&finder_));
    manager_->SetLateFailureSink(
        [this](const absl::Status& status) { told_.emplace_back(status.ToString()); });
    listener_ = manager_->CreateEndpoint(device::PortSpace::kTcp, nullptr);
    ASSERT_OK(listener_->BindAddr({IpAddress::AnyV4(), 7174}));
    ASSERT_OK(listener_->Listen(4));
  }
  void TearDown() override {
    listener_.reset();
    manager_.reset();
    EXPECT_EQ(open_ids, 0);
    bind_error = 0;
  }

  const NoDevices finder_;
  std::vector<std::string> told_;
  std::unique_ptr<VerbsConnectionManager> manager_;
  std::unique_ptr<device::CmEndpoint> listener_;
};

TEST_F(DeferredListenerTest, OneThatTheKernelRefusesIsToldOfOnceAndByItsAddress) {
  bind_error = EADDRINUSE;
  ASSERT_OK(manager_->Open());
  ASSERT_OK(manager_->Open());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_[0].find("local=0.0.0.0:7174"), std::string::npos) << told_[0];
  EXPECT_NE(told_[0].find("Address already in use"), std::string::npos) << told_[0];
  // Whoever has the id hears the same from its next call.
  EXPECT_TRUE(absl::IsAlreadyExists(listener_->Listen(4)));
  EXPECT_EQ(told_.size(), 1u);
}

TEST_F(DeferredListenerTest, OneThatTheKernelTakesIsNoNews) {
  ASSERT_OK(manager_->Open());
  EXPECT_TRUE(told_.empty());
  EXPECT_STREQ(listener_->state_name(), "listening");
  EXPECT_EQ(open_ids, 1);
}

}  // namespace
}  // namespace rdmad::verbs
