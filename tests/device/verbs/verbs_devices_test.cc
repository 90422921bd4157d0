// Devices that come and go, and their ports, against a library that has what a test tells it to.
#include "daemon/device/verbs/verbs_devices.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/device/verbs/verbs_data_path.h"
#include "tests/device/verbs/fake_ibverbs.h"
#include "tests/support/net_namespace.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"

namespace rdmad::verbs {
namespace {

using Names = std::vector<std::string>;

class VerbsDevicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(path_, VerbsDataPath::Create(&sink_));
    ASSERT_OK_AND_ASSIGN(second_path_, VerbsDataPath::Create(&sink_, 1));
  }

  void SetPorts(uint8_t count) {
    lib_.ports = count;
    for (int port = 1; port <= count; ++port) {
      std::filesystem::create_directories(sysfs_.path() + "/ports/" + std::to_string(port));
    }
    std::strcpy(lib_.device()->ibdev_path, sysfs_.path().c_str());
  }
  void Start(std::vector<std::string> only = {}) {
    ASSERT_OK_AND_ASSIGN(
        devices_,
        VerbsDevices::Create({std::move(only)}, {path_.get(), second_path_.get()},
                             [this](uint32_t engine, auto& object, std::function<void()> done) {
                               asked_engines_.push_back(engine);
                               object.Activate(0);
                               answers_.push_back(std::move(done));
                             }));
  }
  [[nodiscard]] Names ServedNames() const {
    Names names;
    for (const device::Device* device : devices_->devices()) names.push_back(device->name());
    return names;
  }
  // What the device's own word leads to.
  void Remove() {
    lib_.present = false;
    lib_.RaiseAsync(IBV_EVENT_DEVICE_FATAL);
    devices_->Poll();
    for (const std::function<void()>& answer : std::exchange(answers_, {})) answer();
  }

  class Sink final : public device::AsyncSink {
    void OnAsyncEvent(const device::AsyncEvent&) noexcept override {}
  } sink_;
  testing::FakeIbverbs lib_;
  testing::TempDir sysfs_;
  std::unique_ptr<VerbsDataPath> path_;         // of engine 0
  std::unique_ptr<VerbsDataPath> second_path_;  // of engine 1
  std::vector<uint32_t> asked_engines_;
  std::vector<std::function<void()>> answers_;
  std::unique_ptr<VerbsDevices> devices_;
};

TEST_F(VerbsDevicesTest, EachPortIsADevice) {
  SetPorts(2);
  Start();
  ASSERT_EQ(ServedNames(), (Names{"fake0", "fake0.2"}));
  device::Device* const first = devices_->devices()[0];
  device::Device* const second = devices_->devices()[1];
  EXPECT_EQ(devices_->FindPort("fake0", 1), first);
  EXPECT_EQ(devices_->FindPort("fake0", 2), second);
  EXPECT_EQ(devices_->FindPort("fake0", 3), nullptr);
  EXPECT_EQ(devices_->FindByAddress(IpAddress::FromV4(10, 0, 1, 1)), first);
  EXPECT_EQ(devices_->FindByAddress(IpAddress::FromV4(10, 0, 2, 1)), second);
  EXPECT_TRUE(first->QueryPort().active());
  EXPECT_FALSE(second->QueryPort().active());
}

TEST_F(VerbsDevicesTest, APortTellsItsLinkLayer) {
  SetPorts(1);
  Start();
  device::PortAttr port = devices_->devices()[0]->QueryPort();
  EXPECT_EQ(port.link_layer, device::LinkLayer::kEthernet);
  EXPECT_EQ(port.lid, 0);
  lib_.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  lib_.port.lid = 7;
  lib_.port.lmc = 1;
  lib_.RaiseAsync(IBV_EVENT_LID_CHANGE);
  devices_->Poll();
  port = devices_->devices()[0]->QueryPort();
  EXPECT_EQ(port.link_layer, device::LinkLayer::kInfiniband);
  EXPECT_EQ(port.lid, 7);
  EXPECT_EQ(port.lmc, 1);
}

// Lists and metrics ask often, and asking the hardware takes its time.
TEST_F(VerbsDevicesTest, APortIsAskedWhenItHasChangedOnly) {
  SetPorts(1);
  Start();
  const device::Device& device = *devices_->devices()[0];
  const int asked = lib_.port_queries;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(device.QueryPort().active_mtu, device::Mtu::k1024);
  EXPECT_EQ(lib_.port_queries, asked);
  lib_.port.active_mtu = IBV_MTU_2048;
  lib_.RaiseAsync(IBV_EVENT_PORT_ACTIVE);
  devices_->Poll();
  EXPECT_EQ(device.QueryPort().active_mtu, device::Mtu::k2048);
  EXPECT_GT(lib_.port_queries, asked);
}

// A driver says nothing of a new MTU.
TEST_F(VerbsDevicesTest, APortIsAskedWhenAnInterfaceHasChanged) {
  absl::StatusOr<testing::NetNamespace> network = testing::NetNamespace::Create();
  if (!network.ok()) GTEST_SKIP() << network.status();
  SetPorts(1);
  network->Call([&] { Start(); });
  const device::Device& device = *devices_->devices()[0];
  lib_.port.active_mtu = IBV_MTU_4096;
  ASSERT_OK(network->Run("ip link set lo mtu 9000"));
  for (int i = 0; i < 100 && device.QueryPort().active_mtu != device::Mtu::k4096; ++i) {
    pollfd readable{devices_->poll_fd(), POLLIN, 0};
    ::poll(&readable, 1, 1000);
    devices_->Poll();
  }
  EXPECT_EQ(device.QueryPort().active_mtu, device::Mtu::k4096);
}

TEST_F(VerbsDevicesTest, ADeviceTellsWhatAnApplicationHasOfIt) {
  SetPorts(1);
  Start();
  const device::Device& device = *devices_->devices()[0];
  EXPECT_EQ(device.attr().cap_flags, device::kCapAll) << "the rest is the hardware's alone";
  EXPECT_EQ(device.Pkeys(), (std::vector<uint16_t>{0xffff, 0xfffe}));
}

// So that the soft device takes the address, or leaves it, at once.
TEST_F(VerbsDevicesTest, WhoServesAnAddressIsToldOf) {
  Start();
  int told = 0;
  devices_->SetAddressHook([&] { ++told; });
  devices_->Poll();
  EXPECT_EQ(told, 0) << "nothing has changed";
  lib_.RaiseAsync(IBV_EVENT_GID_CHANGE);
  devices_->Poll();
  EXPECT_EQ(told, 1);
  Remove();
  EXPECT_EQ(told, 2);
}

TEST_F(VerbsDevicesTest, AnApplicationsPort1IsThePortOfItsDevice) {
  SetPorts(2);
  Start();
  ASSERT_OK_AND_ASSIGN(const auto context, devices_->FindPort("fake0", 2)->Open(0));
  ASSERT_OK_AND_ASSIGN(const auto pd, context->AllocPd());
  ASSERT_OK_AND_ASSIGN(const auto ah, context->CreateAh(*pd, {}));
  ASSERT_OK(ah->Prepare());
  EXPECT_EQ(lib_.ah_attr.port_num, 2);
  ASSERT_OK_AND_ASSIGN(const auto cq, context->CreateCq(8, nullptr));
  device::QpInit init;
  init.send_cq = init.recv_cq = cq.get();
  ASSERT_OK_AND_ASSIGN(const auto qp, context->CreateQp(*pd, init));
  device::QpAttr attr;
  attr.mask = device::kQpAttrState | device::kQpAttrPort;
  attr.state = device::QpState::kInit;
  ASSERT_EQ(qp->Modify(attr, 0), device::QpResult::kOk);
  EXPECT_EQ(lib_.last_modify.port_num, 2);
  attr.port = 2;
  EXPECT_EQ(qp->Modify(attr, 0), device::QpResult::kBadValue) << "it has one port";
}

TEST_F(VerbsDevicesTest, APortsEventsAreItsDevices) {
  ASSERT_OK_AND_ASSIGN(const auto second, VerbsDevice::Open(lib_.device(), 2, {path_.get()}));
  for (const int port : {1, 2}) {
    lib_.event_port = port;
    lib_.RaiseAsync(IBV_EVENT_PORT_ERR);
    EXPECT_EQ(second->TakeAsyncEvents().size(), port == 2 ? 1u : 0u) << port;
  }
}

TEST_F(VerbsDevicesTest, TheConfigurationNamesDevicesOrPorts) {
  const struct {
    Names only;
    Names served;
  } kCases[] = {
      {{}, {"fake0", "fake0.2"}}, {{"fake0"}, {"fake0", "fake0.2"}}, {{"fake0.2"}, {"fake0.2"}}, {{"fake1"}, {}},
  };
  SetPorts(2);
  for (const auto& one : kCases) {
    Start(one.only);
    EXPECT_EQ(ServedNames(), one.served);
    EXPECT_EQ(devices_->problems().size(), one.served.empty() ? 1u : 0u);
  }
}

TEST_F(VerbsDevicesTest, WhatCannotBeServedSaysWhy) {
  const struct {
    const char* name;
    ibv_transport_type transport;
    const char* why;
  } kCases[] = {
      {"siw0", IBV_TRANSPORT_IWARP, "iWARP"},
      {"hns_0", IBV_TRANSPORT_IB, "driver copies"},
  };
  for (const auto& one : kCases) {
    std::strcpy(lib_.device()->name, one.name);
    lib_.device()->transport_type = one.transport;
    Start();
    EXPECT_EQ(ServedNames(), Names());
    ASSERT_EQ(devices_->problems().size(), 1u);
    EXPECT_EQ(devices_->problems()[0].what, one.name);
    EXPECT_NE(devices_->problems()[0].why.find(one.why), std::string::npos)
        << devices_->problems()[0].why;
  }
}

TEST_F(VerbsDevicesTest, ADeviceThatGoesIsToldAndFreed) {
  Start();
  Names told;
  devices_->SetObserver({.on_added = [&](auto& device) { told.push_back("+" + device.name()); },
                         .on_removed = [&](auto& device) { told.push_back("-" + device.name()); },
                         .on_event = {}});
  ASSERT_OK_AND_ASSIGN(auto context, devices_->devices()[0]->Open(0));
  Remove();
  EXPECT_EQ(told, Names{"-fake0"});
  EXPECT_EQ(lib_.open_objects, 0) << "the kernel may be waiting for it";
  EXPECT_EQ(devices_->kept_count(), 1u) << "who was told may look at it";
  devices_->Poll();
  EXPECT_EQ(devices_->kept_count(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(context->AllocPd().status())) << "a context needs no device";
}

TEST_F(VerbsDevicesTest, ContextsGoOnTheEnginesThatDriveThem) {
  Start();
  ASSERT_OK_AND_ASSIGN(const auto first, devices_->devices()[0]->Open(0));
  ASSERT_OK_AND_ASSIGN(const auto second, devices_->devices()[0]->Open(1));
  second->Activate(0);
  Remove();
  EXPECT_EQ(asked_engines_, (std::vector<uint32_t>{0, 1}));
  second->Deactivate(0);
}

TEST_F(VerbsDevicesTest, AContextInASlowCallIsClosedWhenThatIsOver) {
  Start();
  ASSERT_OK_AND_ASSIGN(auto context, devices_->devices()[0]->Open(0));
  ASSERT_OK_AND_ASSIGN(auto pd, context->AllocPd());
  ASSERT_OK_AND_ASSIGN(auto ah, context->CreateAh(*pd, {}));
  lib_.during_slow_call = [this] {
    Remove();
    devices_->Poll();
    EXPECT_NE(lib_.open_objects, 0) << "somebody is in there";
  };
  EXPECT_TRUE(absl::IsUnavailable(ah->Prepare()));
  EXPECT_NE(lib_.open_objects, 0) << "closing is for this thread's Poll()";
  devices_->Poll();
  EXPECT_EQ(lib_.open_objects, 0);
}

}  // namespace
}  // namespace rdmad::verbs
