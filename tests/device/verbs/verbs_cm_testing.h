// What the tests of the verbs connection manager share: a finder over a soft-RoCE device of this
// kernel, sinks that write down, and QPs in a context of their own, as a session has them.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/verbs/device_finder.h"
#include "daemon/device/verbs/verbs_connection_manager.h"
#include "tests/support/fake_device.h"

namespace rdmad::testing {

// Parameters with a QPN that no connection of this process has had: the kernel takes a second
// connection to the same remote QP for a stale one, and all QPs here are on one device.
[[nodiscard]] device::ConnParam WithOwnQpn(const std::string& private_data = {});

// Serves one device of the kernel, while `serves`.
class OneDeviceFinder final : public verbs::DeviceFinder {
 public:
  OneDeviceFinder(std::string name, std::vector<IpAddress> addresses)
      : name_(std::move(name)), addresses_(std::move(addresses)) {}
  device::Device* FindPort(std::string_view ibv_name, uint8_t port) const override;
  device::Device* FindByAddress(const IpAddress& address) const override;

  bool serves = true;

 private:
  const std::string name_;
  const std::vector<IpAddress> addresses_;
  mutable FakeDevice device_{nullptr};
};

// The first soft-RoCE device; nullopt: this kernel has none.
struct RxeDevice {
  std::string name;
  std::string netdev;
  IpAddress v4;
  IpAddress v6;  // not link-local

  static std::optional<RxeDevice> Find();
};

// An endpoint and what it heard.
class Party final : public device::CmEventSink {
 public:
  Party() = default;
  Party(device::ConnectionManager& manager, device::PortSpace space)
      : endpoint(manager.CreateEndpoint(space, this)) {}
  void Take(std::unique_ptr<device::CmEndpoint> taken);
  void OnCmEvent(device::CmEvent event) override;
  [[nodiscard]] const device::CmEvent* Last() const {
    return events.empty() ? nullptr : &events.back();
  }
  [[nodiscard]] const device::CmEvent* Find(device::CmEventType type) const;

  std::unique_ptr<device::CmEndpoint> endpoint;
  std::vector<device::CmEvent> events;
  std::function<void(device::CmEvent&)> on_event;  // before it is written down
};

// An RC QP in its own context, with one buffer.
class RawQp {
 public:
  static constexpr size_t kBufferBytes = 4096;

  explicit RawQp(const std::string& device_name);
  ~RawQp();
  RawQp(const RawQp&) = delete;
  RawQp& operator=(const RawQp&) = delete;

  [[nodiscard]] uint32_t qpn() const { return qp_->qp_num; }
  // INIT, RTR, RTS with the endpoint's attributes.
  ::testing::AssertionResult Connect(const device::CmEndpoint& endpoint);
  void PostRecv();
  void PostSend(std::string_view text);
  // The next completion; nullopt: none came in ten seconds.
  std::optional<ibv_wc> NextCompletion();
  [[nodiscard]] std::string_view buffer() const { return {buffer_.data(), buffer_.size()}; }

 private:
  std::vector<char> buffer_ = std::vector<char>(kBufferBytes);
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
};

// Needs a soft-RoCE device; skips without one.
class VerbsCmTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Polls the manager until `done`, for ten seconds at most.
  ::testing::AssertionResult Pump(const std::function<bool()>& done);
  // Until the party's last event is of this type.
  ::testing::AssertionResult Hear(const Party& party, device::CmEventType type);
  // The port on which `party` listens from now on.
  uint16_t ListenOn(Party& party, const IpAddress& address);
  ::testing::AssertionResult ResolveTo(Party& party, const SocketAddress& peer);
  // Resolves and connects, up to the request that `listener` hears of, which `accepting` takes.
  ::testing::AssertionResult Ask(Party& connecting, Party& listener, Party& accepting,
                                 const device::ConnParam& param = WithOwnQpn());
  // The same, and accepts and establishes without QPs.
  ::testing::AssertionResult Establish(Party& connecting, Party& listener, Party& accepting);

  RxeDevice rxe_;
  std::unique_ptr<OneDeviceFinder> finder_;
  std::unique_ptr<verbs::VerbsConnectionManager> manager_;
};

}  // namespace rdmad::testing
