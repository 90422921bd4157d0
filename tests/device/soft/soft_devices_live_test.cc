// How the soft devices follow a network that changes. The interfaces are told, not real; their
// addresses are of the loopback network, so that ports can be opened on them anywhere.
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/soft/soft_devices.h"
#include "gtest/gtest.h"
#include "tests/device/soft/soft_host.h"
#include "tests/device/soft/test_net.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using rdmad::testing::TestPort;

IpAddress Address(uint8_t last) {
  return IpAddress::FromV4(127, 0, 7, last);
}

NetInterface Interface(uint32_t index, const std::string& name, std::vector<uint8_t> lasts) {
  NetInterface interface;
  interface.index = index;
  interface.name = name;
  interface.up = interface.running = true;
  interface.mtu_bytes = 1500;
  for (const uint8_t last : lasts) {
    NetAddress address;
    address.address = Address(last);
    interface.addresses.push_back(address);
  }
  return interface;
}

device::QpInit QpOn(device::Cq& cq) {
  device::QpInit init;
  init.send_cq = init.recv_cq = &cq;
  init.cap = {4, 4, 1, 1, 0};
  return init;
}

device::QpAttr ToInit() {
  device::QpAttr attr;
  attr.mask = device::kQpAttrState | device::kQpAttrAccessFlags | device::kQpAttrPkeyIndex |
              device::kQpAttrPort;
  attr.state = device::QpState::kInit;
  return attr;
}

// Devices over a network of `network`, with an engine that answers only when it is told to.
class SoftDevicesLiveTest : public ::testing::Test, private device::AsyncSink {
 protected:
  SoftDevicesLiveTest() { rdmad::testing::HavePrivateNetwork(); }
  ~SoftDevicesLiveTest() override {
    if (devices_ == nullptr) return;
    RunEngine();
    for (const auto& [engine, port] : devices_->ports()) port->Deactivate(0);
    devices_.reset();
  }

  void Start(std::vector<NetInterface> network, std::vector<std::string> only = {},
             uint32_t engines = 1) {
    network_ = std::move(network);
    mads_ = SoftMadIo::Create().value();
    SoftDeviceContext context{{}, &qpns_, testing::MonotonicNow};
    for (uint32_t engine = 0; engine < engines; ++engine) {
      paths_.push_back(SoftDataPath::Create(mads_->AddRing(), this).value());
      context.paths.push_back(paths_.back().get());
    }
    SoftDevicesConfig config;
    config.only = std::move(only);
    config.udp_port = TestPort();
    SoftDevicesHooks hooks;
    hooks.read_interfaces = [this] { return network_; };
    hooks.activate = [this](uint32_t, device::EngineObject& object, std::function<void()> done) {
      commands_.push_back([&object] { object.Activate(1); });
      answers_.push_back(std::move(done));
    };
    hooks.deactivate = [this](uint32_t, device::EngineObject& object, std::function<void()> done) {
      commands_.push_back([&object] { object.Deactivate(1); });
      answers_.push_back(std::move(done));
    };
    hooks.on_address_changed = [this](const IpAddress& address) {
      Note(std::string("cm ") + (devices_->FindByAddress(address) == nullptr ? "-" : "+") +
           Last(address));
    };
    hooks.on_device_removed = [this](SoftDevice& device) { Note("cm -" + device.name()); };
    hooks.on_problem = [this](const SoftDeviceProblem& problem) { Note("? " + problem.what); };
    devices_ = SoftDevices::Create(config, context, mads_.get(), hooks).value();
    for (const auto& [engine, port] : devices_->ports()) port->Activate(0);
    devices_->SetObserver({
        [this](device::Device& device) { Note("+" + device.name()); },
        [this](device::Device& device) { Note("-" + device.name()); },
        [this](device::Device& device, AsyncEventType type) {
          Note(device.name() + (type == AsyncEventType::kPortActive  ? " active"
                                : type == AsyncEventType::kPortErr   ? " error"
                                : type == AsyncEventType::kGidChange ? " gids"
                                                                     : " ?"));
        },
    });
  }

  // What the engines were asked to do, or the first `count` things of that.
  void RunEngine(size_t count = SIZE_MAX) {
    for (; count > 0 && !commands_.empty(); --count) {
      commands_.front()();
      commands_.pop_front();
      const std::function<void()> answer = std::move(answers_.front());
      answers_.pop_front();
      answer();
    }
  }

  // What happened in this look.
  std::string Look() {
    log_.clear();
    EXPECT_TRUE(devices_->Look().ok());
    return log_;
  }

  SoftDevice& device(size_t index = 0) { return *devices_->devices()[index]; }

  // "0:1 1:2": index and last byte of the address.
  std::string Gids(const SoftDevice& device) {
    std::string text;
    for (const device::GidEntry& gid : device.Gids()) {
      if (!text.empty()) text += " ";
      text += std::to_string(gid.index) + ":" + Last(gid.address);
    }
    return text;
  }

  static std::string Last(const IpAddress& address) {
    return std::to_string(address.bytes().back());
  }

  void Note(const std::string& what) { log_ += log_.empty() ? what : ", " + what; }
  void OnAsyncEvent(const device::AsyncEvent&) noexcept override {}

  std::vector<NetInterface> network_;
  std::unique_ptr<SoftMadIo> mads_;
  std::vector<std::unique_ptr<SoftDataPath>> paths_;
  QpnAllocator qpns_{1};
  std::unique_ptr<SoftDevices> devices_;
  std::deque<std::function<void()>> commands_;
  std::deque<std::function<void()>> answers_;
  std::string log_;
};

TEST_F(SoftDevicesLiveTest, ALookAtTheSameNetworkChangesNothing) {
  Start({Interface(2, "eth0", {1, 2})});
  EXPECT_EQ(Look(), "");
  EXPECT_TRUE(commands_.empty());
}

TEST_F(SoftDevicesLiveTest, AnAddressThatComesIsAGidWithALivePort) {
  Start({Interface(2, "eth0", {1})});
  network_ = {Interface(2, "eth0", {1, 2})};
  EXPECT_EQ(Look(), "cm +2, soft0 gids");
  EXPECT_EQ(Gids(device()), "0:1 1:2");
  EXPECT_EQ(commands_.size(), 1u) << "the engine is asked to take the port";
  EXPECT_EQ(devices_->FindByAddress(Address(2)), &device());
}

TEST_F(SoftDevicesLiveTest, AnAddressThatGoesTakesItsGidAtOnceAndItsPortWhenTheEngineHasAnswered) {
  Start({Interface(2, "eth0", {1, 2, 3})});
  network_ = {Interface(2, "eth0", {1, 3})};
  EXPECT_EQ(Look(), "cm -2, soft0 gids");
  EXPECT_EQ(Gids(device()), "0:1 2:3");
  EXPECT_EQ(devices_->ports().size(), 2u);
  EXPECT_FALSE(UdpPort::Open(Address(2), TestPort()).ok()) << "its socket is still open";
  RunEngine();
  EXPECT_TRUE(UdpPort::Open(Address(2), TestPort()).ok());
}

TEST_F(SoftDevicesLiveTest, AnAddressThatComesBackBeforeTheEngineHasAnsweredIsTakenAfterwards) {
  Start({Interface(2, "eth0", {1, 2})});
  network_ = {Interface(2, "eth0", {2})};
  Look();
  network_ = {Interface(2, "eth0", {1, 2})};
  EXPECT_EQ(Look(), "");
  EXPECT_TRUE(devices_->problems().empty()) << "nothing to worry about";
  RunEngine();
  devices_->Poll();  // asks for a look by itself
  for (int i = 0; i < 1000 && Gids(device()) != "0:1 1:2"; ++i) devices_->Poll();
  EXPECT_EQ(Gids(device()), "0:1 1:2");
}

TEST_F(SoftDevicesLiveTest, AnAddressMayMoveToAnotherInterface) {
  Start({Interface(2, "eth0", {1, 2}), Interface(3, "eth1", {3})});
  network_ = {Interface(2, "eth0", {1}), Interface(3, "eth1", {2, 3})};
  EXPECT_EQ(Look(), "cm -2, soft0 gids");
  RunEngine();
  EXPECT_EQ(Look(), "cm +2, soft1 gids");
  EXPECT_EQ(devices_->FindByAddress(Address(2)), &device(1));
}

TEST_F(SoftDevicesLiveTest, ADeviceWithoutAddressesStays) {
  Start({Interface(2, "eth0", {1})});
  SoftDevice* const before = &device();
  network_ = {Interface(2, "eth0", {})};
  EXPECT_EQ(Look(), "cm -1, soft0 gids");
  RunEngine();
  ASSERT_EQ(devices_->devices().size(), 1u);
  network_ = {Interface(2, "eth0", {7})};
  EXPECT_EQ(Look(), "cm +7, soft0 gids");
  EXPECT_EQ(&device(), before);
}

TEST_F(SoftDevicesLiveTest, TheLinkIsThePort) {
  Start({Interface(2, "eth0", {1})});
  network_[0].running = false;
  EXPECT_EQ(Look(), "soft0 error");
  EXPECT_FALSE(device().QueryPort().active());
  EXPECT_EQ(Gids(device()), "0:1");
  network_[0].up = false;
  EXPECT_EQ(Look(), "");
  network_[0].up = network_[0].running = true;
  EXPECT_EQ(Look(), "soft0 active");
  EXPECT_TRUE(device().QueryPort().active());
}

TEST_F(SoftDevicesLiveTest, TheMtuIsThatOfTheInterface) {
  Start({Interface(2, "eth0", {1})});
  network_[0].mtu_bytes = 9000;
  Look();
  EXPECT_EQ(device().QueryPort().active_mtu, device::Mtu::k4096);
  network_[0].mtu_bytes = 200;
  EXPECT_EQ(Look(), "soft0 error") << "too small for RoCE";
  network_[0].mtu_bytes = 1500;
  EXPECT_EQ(Look(), "soft0 active");
  EXPECT_EQ(device().QueryPort().active_mtu, device::Mtu::k1024);
}

TEST_F(SoftDevicesLiveTest, ARenamedInterfaceIsTheSameDevice) {
  Start({Interface(2, "eth0", {1})});
  network_[0].name = "lan0";
  EXPECT_EQ(Look(), "");
  EXPECT_EQ(device().netdev(), "lan0");
}

TEST_F(SoftDevicesLiveTest, AnInterfaceThatGoesTakesItsDevice) {
  Start({Interface(2, "eth0", {1, 2}), Interface(3, "eth1", {3})});
  SoftDevice& gone = device();
  network_ = {Interface(3, "eth1", {3})};
  EXPECT_EQ(Look(), "cm -soft0, -soft0");
  EXPECT_TRUE(gone.removed());
  EXPECT_FALSE(gone.QueryPort().active());
  EXPECT_TRUE(gone.Gids().empty());
  EXPECT_EQ(gone.Open(0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(gone.AllocPd().status().code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(devices_->devices().size(), 1u);
  EXPECT_EQ(device().name(), "soft1");
  RunEngine();
  EXPECT_TRUE(UdpPort::Open(Address(1), TestPort()).ok());
  // What comes back, under whatever index, is a new device; a free name may come back, too.
  network_.push_back(Interface(9, "eth0", {1, 2}));
  EXPECT_EQ(Look(), "+soft0, cm +1, cm +2");
  EXPECT_EQ(devices_->kept_count(), 0u) << "the old one is freed";
}

TEST_F(SoftDevicesLiveTest, ADeviceThatWentIsFreedWhenNobodyHasItOpen) {
  const std::vector<NetInterface> network = {Interface(1, "eth0", {1})};
  Start(network);
  auto context = device().Open(0).value();
  for (int i = 0; i < 20; ++i) {
    network_.clear();
    EXPECT_EQ(Look(), "cm -soft0, -soft0");
    RunEngine();
    network_ = network;
    Look();
    EXPECT_EQ(devices_->kept_count(), 1u) << "the open one";
  }
  EXPECT_FALSE(context->AllocPd().ok());
  context.reset();
  Look();
  EXPECT_EQ(devices_->kept_count(), 0u);
}

TEST_F(SoftDevicesLiveTest, QpsOfADeviceThatGoesAreFlushed) {
  Start({Interface(2, "eth0", {1})});
  testing::WcRecorder sink;
  auto pd = device().AllocPd().value();
  auto cq = device().CreateCq(16, &sink).value();
  const device::QpInit init = QpOn(*cq);
  auto qp = device().CreateQp(*pd, init).value();
  auto given_back = device().CreateQp(*pd, init).value();
  qp->Activate(1);
  ASSERT_EQ(qp->Modify(ToInit(), 1), device::QpResult::kOk);
  ASSERT_EQ(qp->PostRecv({5, {}}, 1), device::PostResult::kOk);
  network_.clear();
  Look();
  given_back.reset();  // before the engine gets to it
  RunEngine();
  EXPECT_EQ(qp->Query().state, device::QpState::kErr);
  ASSERT_EQ(sink.all.size(), 1u);
  EXPECT_EQ(sink.all[0].status, device::WcStatus::kWrFlushErr);
  qp->Deactivate(1);
}

TEST_F(SoftDevicesLiveTest, AnAddressIsFreeWhenTheLastEngineHasLetGo) {
  Start({Interface(2, "eth0", {1, 2})}, {}, 3);
  ASSERT_EQ(devices_->ports().size(), 6u);
  network_ = {Interface(2, "eth0", {1})};
  EXPECT_EQ(Look(), "cm -2, soft0 gids");
  RunEngine(2);
  EXPECT_FALSE(UdpPort::Open(Address(2), TestPort()).ok());
  RunEngine(1);
  EXPECT_TRUE(commands_.empty());
  EXPECT_TRUE(UdpPort::Open(Address(2), TestPort()).ok());
}

TEST_F(SoftDevicesLiveTest, EachEngineFlushesItsQpsOfADeviceThatGoes) {
  Start({Interface(2, "eth0", {1})}, {}, 2);
  testing::WcRecorder sink;
  auto pd = device().AllocPd().value();
  auto cq = device().CreateCq(16, &sink).value();
  const device::QpInit init = QpOn(*cq);
  std::vector<std::unique_ptr<device::Qp>> qps;
  for (const uint32_t engine : {0u, 1u}) {
    qps.push_back(device().CreateQp(*pd, init, engine).value());
    qps.back()->Activate(1);
    ASSERT_EQ(qps.back()->Modify(ToInit(), 1), device::QpResult::kOk);
  }
  network_.clear();
  Look();
  RunEngine(1);
  EXPECT_EQ(qps[0]->Query().state, device::QpState::kErr);
  EXPECT_EQ(qps[1]->Query().state, device::QpState::kInit);
  RunEngine();
  EXPECT_EQ(qps[1]->Query().state, device::QpState::kErr);
  for (const auto& qp : qps) qp->Deactivate(1);
}

// A datagram by such a handle would otherwise seem to come from the other address.
TEST_F(SoftDevicesLiveTest, AnIndexThatAnAddressHandleNamesIsNotGivenToAnotherAddress) {
  Start({Interface(2, "eth0", {1, 2})});
  auto pd = device().AllocPd().value();
  auto handle = device().CreateAh(*pd, {.dest = Address(9), .sgid_index = 1}).value();
  network_ = {Interface(2, "eth0", {1})};
  Look();
  RunEngine();
  network_ = {Interface(2, "eth0", {1, 3})};
  Look();
  EXPECT_EQ(Gids(device()), "0:1 2:3");
  handle.reset();
  network_ = {Interface(2, "eth0", {1, 3, 4})};
  Look();
  EXPECT_EQ(Gids(device()), "0:1 1:4 2:3");
}

TEST_F(SoftDevicesLiveTest, ATakenPortIsTriedAgain) {
  auto other = UdpPort::Open(Address(2), TestPort()).value();
  Start({Interface(2, "eth0", {1})});
  network_ = {Interface(2, "eth0", {1, 2})};
  EXPECT_EQ(Look(), "? " + Address(2).ToString());
  EXPECT_EQ(Look(), "") << "said once";
  ASSERT_EQ(devices_->problems().size(), 1u);
  EXPECT_NE(devices_->problems()[0].why.find("tried again"), std::string::npos);
  other.reset();
  EXPECT_EQ(Look(), "cm +2, soft0 gids");
  EXPECT_EQ(Gids(device()), "0:1 1:2");
  EXPECT_TRUE(devices_->problems().empty());
}

TEST_F(SoftDevicesLiveTest, AnInterfaceBecomesADeviceWhenItIsUpAndHasAnAddress) {
  NetInterface down = Interface(2, "eth0", {1});
  down.up = down.running = false;
  Start({down, Interface(3, "eth1", {})}, {"eth0", "eth1"});
  EXPECT_TRUE(devices_->devices().empty());
  EXPECT_EQ(devices_->problems().size(), 2u);
  network_[0].up = network_[0].running = true;
  EXPECT_EQ(Look(), "+soft0, cm +1");
  network_[1] = Interface(3, "eth1", {3});
  EXPECT_EQ(Look(), "+soft1, cm +3");
  EXPECT_TRUE(devices_->problems().empty());
}

TEST_F(SoftDevicesLiveTest, CountersOfAPortThatWentStay) {
  Start({Interface(2, "eth0", {1, 2})});
  const auto failed = [this] {
    return testing::SoftHost::Value(device().Counters(), "mad_tx_failed");
  };
  std::array<uint8_t, kMadBytes> mad{};
  // Nowhere to go: it fails and is counted.
  ASSERT_FALSE(mads_->SendMad({Address(2), IpAddress::FromV4(255, 255, 255, 255)}, mad));
  ASSERT_EQ(failed(), 1u);
  network_ = {Interface(2, "eth0", {1})};
  Look();
  EXPECT_EQ(failed(), 1u);
  RunEngine();
  EXPECT_EQ(failed(), 1u);
}

TEST_F(SoftDevicesLiveTest, AnUnreadableNetworkChangesNothing) {
  Start({Interface(2, "eth0", {1})});
  network_.clear();
  bool fails = true;
  // A second set of devices whose reading fails after the start.
  SoftDevicesHooks hooks = testing::EngineOfThisThread();
  hooks.read_interfaces = [&]() -> absl::StatusOr<std::vector<NetInterface>> {
    if (!fails) return std::vector<NetInterface>{Interface(2, "eth0", {9})};
    return absl::UnavailableError("no netlink today");
  };
  SoftDevicesConfig config;
  config.udp_port = TestPort();
  const SoftDeviceContext context{{paths_[0].get()}, &qpns_, testing::MonotonicNow};
  EXPECT_FALSE(SoftDevices::Create(config, context, mads_.get(), hooks).ok());
  fails = false;
  auto other = SoftDevices::Create(config, context, mads_.get(), hooks).value();
  fails = true;
  EXPECT_FALSE(other->Look().ok());
  EXPECT_EQ(other->devices().size(), 1u);
}

}  // namespace
}  // namespace rdmad::soft
