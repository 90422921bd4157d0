#include "tests/device/verbs/verbs_cm_testing.h"

#include <poll.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/device/verbs/qp_attr.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(10);
constexpr uint32_t kResolveMs = 2000;

int MsUntil(steady_clock::time_point deadline) {
  return static_cast<int>(std::max<int64_t>(
      0, std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count()));
}

std::vector<IpAddress> GidsOf(ibv_context* context) {
  std::vector<IpAddress> addresses;
  for (int i = 0; i < 16; ++i) {
    ibv_gid_entry entry;
    if (ibv_query_gid_ex(context, 1, static_cast<uint32_t>(i), &entry, 0) != 0) continue;
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    Gid gid;
    std::copy_n(entry.gid.raw, gid.size(), gid.begin());
    addresses.push_back(IpAddress::FromGid(gid));
  }
  return addresses;
}

ibv_context* Open(const std::string& name) {
  ibv_device** const list = ibv_get_device_list(nullptr);
  ibv_context* context = nullptr;
  for (ibv_device** one = list; list != nullptr && *one != nullptr; ++one) {
    if (ibv_get_device_name(*one) == name) context = ibv_open_device(*one);
  }
  if (list != nullptr) ibv_free_device_list(list);
  return context;
}

std::vector<std::string> DeviceNames() {
  std::vector<std::string> names;
  ibv_device** const list = ibv_get_device_list(nullptr);
  for (ibv_device** one = list; list != nullptr && *one != nullptr; ++one) {
    names.emplace_back(ibv_get_device_name(*one));
  }
  if (list != nullptr) ibv_free_device_list(list);
  return names;
}

}  // namespace

device::ConnParam WithOwnQpn(const std::string& private_data) {
  static uint32_t last_qpn = 0x1000;
  device::ConnParam param;
  param.private_data.assign(private_data.begin(), private_data.end());
  param.qpn = ++last_qpn;
  return param;
}

device::Device* OneDeviceFinder::FindPort(std::string_view ibv_name, uint8_t port) const {
  return serves && ibv_name == name_ && port == 1 ? &device_ : nullptr;
}

device::Device* OneDeviceFinder::FindByAddress(const IpAddress& address) const {
  const bool has = std::find(addresses_.begin(), addresses_.end(), address) != addresses_.end();
  return serves && has ? &device_ : nullptr;
}

std::optional<RxeDevice> RxeDevice::Find() {
  for (const std::string& name : DeviceNames()) {
    if (name.rfind("rxe", 0) != 0) continue;
    RxeDevice found;
    found.name = name;
    std::ifstream("/sys/class/infiniband/" + name + "/ports/1/gid_attrs/ndevs/0") >> found.netdev;
    ibv_context* const context = Open(name);
    if (context == nullptr) continue;
    for (const IpAddress& address : GidsOf(context)) {
      if (address.is_v4()) {
        found.v4 = address;
      } else if (!address.is_link_local()) {
        found.v6 = address;
      }
    }
    ibv_close_device(context);
    return found;
  }
  return std::nullopt;
}

// ---- Party ----

void Party::Take(std::unique_ptr<device::CmEndpoint> taken) {
  endpoint = std::move(taken);
  endpoint->SetSink(this);
}

void Party::OnCmEvent(device::CmEvent event) {
  if (on_event) on_event(event);
  events.push_back(std::move(event));
}

const device::CmEvent* Party::Find(device::CmEventType type) const {
  const auto found = std::find_if(events.begin(), events.end(),
                                  [type](const device::CmEvent& one) { return one.type == type; });
  return found == events.end() ? nullptr : &*found;
}

// ---- RawQp ----

RawQp::RawQp(const std::string& device_name) : context_(Open(device_name)) {
  pd_ = ibv_alloc_pd(context_);
  mr_ = ibv_reg_mr(pd_, buffer_.data(), buffer_.size(), IBV_ACCESS_LOCAL_WRITE);
  cq_ = ibv_create_cq(context_, 16, nullptr, nullptr, 0);
  ibv_qp_init_attr init{};
  init.send_cq = cq_;
  init.recv_cq = cq_;
  init.cap = {.max_send_wr = 4,
              .max_recv_wr = 4,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 1;
  qp_ = ibv_create_qp(pd_, &init);
}

RawQp::~RawQp() {
  ibv_destroy_qp(qp_);
  ibv_destroy_cq(cq_);
  ibv_dereg_mr(mr_);
  ibv_dealloc_pd(pd_);
  ibv_close_device(context_);
}

::testing::AssertionResult RawQp::Connect(const device::CmEndpoint& endpoint) {
  for (const device::QpState state :
       {device::QpState::kInit, device::QpState::kRtr, device::QpState::kRts}) {
    const absl::StatusOr<device::QpAttr> attr = endpoint.InitQpAttr(state);
    if (!attr.ok()) return ::testing::AssertionFailure() << attr.status().ToString();
    ibv_qp_attr to;
    int mask;
    verbs::ToIbv(*attr, 1, &to, &mask);
    const int error = ibv_modify_qp(qp_, &to, mask);
    if (error != 0) {
      return ::testing::AssertionFailure()
             << "ibv_modify_qp to state " << static_cast<int>(state) << ": error " << error;
    }
  }
  return ::testing::AssertionSuccess();
}

void RawQp::PostRecv() {
  ibv_sge sge{reinterpret_cast<uint64_t>(buffer_.data()), kBufferBytes, mr_->lkey};
  ibv_recv_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad;
  ASSERT_EQ(ibv_post_recv(qp_, &wr, &bad), 0);
}

void RawQp::PostSend(std::string_view text) {
  std::copy(text.begin(), text.end(), buffer_.begin());
  ibv_sge sge{reinterpret_cast<uint64_t>(buffer_.data()), static_cast<uint32_t>(text.size()),
              mr_->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  ibv_send_wr* bad;
  ASSERT_EQ(ibv_post_send(qp_, &wr, &bad), 0);
}

std::optional<ibv_wc> RawQp::NextCompletion() {
  const auto deadline = steady_clock::now() + kPatience;
  ibv_wc wc;
  while (steady_clock::now() < deadline) {
    if (ibv_poll_cq(cq_, 1, &wc) == 1) return wc;
  }
  return std::nullopt;
}

// ---- the fixture ----

void VerbsCmTest::SetUp() {
  const std::optional<RxeDevice> rxe = RxeDevice::Find();
  if (!rxe.has_value()) {
    GTEST_SKIP() << "needs a soft-RoCE device: run //tests/device/verbs:verbs_cm_test";
  }
  rxe_ = *rxe;
  finder_ = std::make_unique<OneDeviceFinder>(rxe_.name, std::vector<IpAddress>{rxe_.v4, rxe_.v6});
  ASSERT_OK_AND_ASSIGN(manager_, verbs::VerbsConnectionManager::Create(finder_.get()));
  ASSERT_OK(manager_->Open());
}

void VerbsCmTest::TearDown() {
  if (manager_ == nullptr) return;
  EXPECT_EQ(manager_->endpoint_count(), 0u);
}

::testing::AssertionResult VerbsCmTest::Pump(const std::function<bool()>& done) {
  const auto deadline = steady_clock::now() + kPatience;
  while (!done()) {
    pollfd poller{manager_->poll_fd(), POLLIN, 0};
    if (::poll(&poller, 1, MsUntil(deadline)) <= 0) {
      return ::testing::AssertionFailure() << "did not happen in ten seconds";
    }
    manager_->Poll(0);
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult VerbsCmTest::Hear(const Party& party, device::CmEventType type) {
  ::testing::AssertionResult heard =
      Pump([&] { return party.Last() != nullptr && party.Last()->type == type; });
  if (!heard) {
    heard << "; waited for event " << static_cast<int>(type) << ", heard";
    for (const device::CmEvent& event : party.events) {
      heard << " " << static_cast<int>(event.type) << "(" << event.status << ")";
    }
  }
  return heard;
}

uint16_t VerbsCmTest::ListenOn(Party& party, const IpAddress& address) {
  EXPECT_OK(party.endpoint->BindAddr({address, 0}));
  EXPECT_OK(party.endpoint->Listen(8));
  EXPECT_STREQ(party.endpoint->state_name(), "listening");
  return party.endpoint->local().port;
}

::testing::AssertionResult VerbsCmTest::ResolveTo(Party& party, const SocketAddress& peer) {
  absl::Status status = party.endpoint->ResolveAddr({}, peer, kResolveMs);
  if (!status.ok()) return ::testing::AssertionFailure() << status.ToString();
  ::testing::AssertionResult heard = Hear(party, device::CmEventType::kAddrResolved);
  if (!heard) return heard;
  status = party.endpoint->ResolveRoute(kResolveMs);
  if (!status.ok()) return ::testing::AssertionFailure() << status.ToString();
  return Hear(party, device::CmEventType::kRouteResolved);
}

::testing::AssertionResult VerbsCmTest::Ask(Party& connecting, Party& listener, Party& accepting,
                                            const device::ConnParam& param) {
  SocketAddress peer = listener.endpoint->local();
  if (peer.ip.is_any()) peer.ip = rxe_.v4;
  ::testing::AssertionResult ok = ResolveTo(connecting, peer);
  if (!ok) return ok;
  const size_t heard_before = listener.events.size();
  const absl::Status status = connecting.endpoint->Connect(param);
  if (!status.ok()) return ::testing::AssertionFailure() << status.ToString();
  ok = Pump([&] { return listener.events.size() > heard_before; });
  if (ok) accepting.Take(std::move(listener.events.back().new_endpoint));
  return ok;
}

::testing::AssertionResult VerbsCmTest::Establish(Party& connecting, Party& listener,
                                                  Party& accepting) {
  ::testing::AssertionResult ok = Ask(connecting, listener, accepting);
  if (!ok) return ok;
  absl::Status status = accepting.endpoint->Accept(WithOwnQpn());
  if (!status.ok()) return ::testing::AssertionFailure() << status.ToString();
  ok = Hear(connecting, device::CmEventType::kConnectResponse);
  if (!ok) return ok;
  status = connecting.endpoint->Establish();
  if (!status.ok()) return ::testing::AssertionFailure() << status.ToString();
  return Hear(accepting, device::CmEventType::kEstablished);
}

}  // namespace rdmad::testing
