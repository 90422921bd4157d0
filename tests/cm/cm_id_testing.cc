#include "tests/cm/cm_id_testing.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "gtest/gtest.h"

namespace rdmad::cm {
namespace {

const char* StateName(device::QpState state) {
  static constexpr const char* kNames[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "err"};
  return kNames[static_cast<int>(state)];
}

// Has attributes and nothing else.
class FakeDevice : public device::Device {
 public:
  FakeDevice() { attr_.max_qp_rd_atom = 16; }
  const std::string& name() const noexcept override { return name_; }
  const std::string& kind() const noexcept override { return name_; }
  const std::string& netdev() const noexcept override { return name_; }
  const device::DeviceAttr& attr() const noexcept override { return attr_; }
  device::PortAttr QueryPort() const override { return {}; }
  std::vector<device::GidEntry> Gids() const override { return {}; }
  std::vector<device::CounterValue> Counters() const override { return {}; }
  absl::StatusOr<std::unique_ptr<device::Context>> Open(uint32_t) override {
    return absl::UnimplementedError("a test device");
  }

 private:
  std::string name_ = "fake0";
  device::DeviceAttr attr_;
};

}  // namespace

// ---- FakeEndpoint ----

FakeEndpoint::FakeEndpoint(FakeManager* manager, device::CmEventSink* event_sink)
    : sink(event_sink), manager_(manager) {
  ++manager_->alive;
  manager_->last = this;
}

FakeEndpoint::~FakeEndpoint() {
  --manager_->alive;
  manager_->log.push_back("destroy");
}

absl::Status FakeEndpoint::Call(const char* name) {
  manager_->log.push_back(name);
  const auto result = results.find(name);
  return result == results.end() ? absl::OkStatus() : result->second;
}

absl::Status FakeEndpoint::Call(const char* name, const device::ConnParam& with) {
  param = with;
  return Call(name);
}

absl::StatusOr<device::QpAttr> FakeEndpoint::InitQpAttr(device::QpState state) const {
  if (!attributes_known) return absl::FailedPreconditionError("no connection");
  device::QpAttr attr;
  attr.mask = device::kQpAttrState;
  attr.state = state;
  attr.max_rd_atomic = 1;
  attr.max_dest_rd_atomic = 2;
  return attr;
}

device::Device* FakeEndpoint::device() const noexcept {
  static FakeDevice device;
  return &device;
}

void FakeEndpoint::Say(device::CmEventType type, int status) {
  device::CmEvent event;
  event.type = type;
  event.status = status;
  event.param.qpn = 0x22;
  event.param.private_data = {1, 2, 3};
  sink->OnCmEvent(std::move(event));
}

FakeEndpoint* FakeEndpoint::SayRequest(uint8_t initiator_depth,
                                       std::shared_ptr<const void> place) {
  device::CmEvent event;
  event.param.initiator_depth = initiator_depth;
  event.type = device::CmEventType::kConnectRequest;
  auto endpoint = std::make_unique<FakeEndpoint>(manager_, nullptr);
  FakeEndpoint* const made = endpoint.get();
  event.new_endpoint = std::move(endpoint);
  event.backlog_place = std::move(place);
  sink->OnCmEvent(std::move(event));
  return made;
}

std::unique_ptr<device::CmEndpoint> FakeManager::CreateEndpoint(device::PortSpace,
                                                                device::CmEventSink* sink) {
  return std::make_unique<FakeEndpoint>(this, sink);
}

// ---- FakeQp, FakeEngine ----

device::QpResult FakeQp::Modify(const device::QpAttr& attr, device::TimeNs) noexcept {
  if ((attr.mask & device::kQpAttrState) == 0) {
    manager_->log.push_back("modify");
    moves.push_back(attr);
    return device::QpResult::kOk;
  }
  if (attr.state == refuses) return device::QpResult::kIllegalTransition;
  moves.push_back(attr);
  manager_->log.push_back(StateName(attr.state));
  return device::QpResult::kOk;
}

void FakeEngine::ModifyQp(device::Qp& qp, const device::QpAttr& attr, ModifyDone done) {
  held_.push_back([&qp, attr, done = std::move(done)] { done(qp.Modify(attr, 0)); });
  if (!holds) Run();
}

void FakeEngine::Run() {
  while (!held_.empty()) {
    const std::function<void()> command = std::move(held_.front());
    held_.pop_front();
    command();
  }
}

// ---- FakeSession ----

absl::StatusOr<uint64_t> FakeSession::AdoptId(std::unique_ptr<CmId> id, CmId& /*listener*/) {
  if (over_quota) return absl::ResourceExhaustedError("quota");
  id->HoldWhilePending(pending);
  ids[next_handle] = std::move(id);
  return next_handle++;
}

// ---- TestChannel ----

TestChannel::TestChannel(FakeSession* session, size_t queue_limit) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  reader_.Reset(ends[0]);
  EXPECT_EQ(::fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
  channel = std::make_unique<EventChannel>(UniqueFd(ends[1]), session, queue_limit);
}

bool TestChannel::Read(shm::CmEvent* out) {
  const ssize_t got = ::read(reader_.get(), out, sizeof(*out));
  EXPECT_TRUE(got < 0 || got == static_cast<ssize_t>(sizeof(*out))) << "records are whole";
  return got > 0;
}

std::vector<shm::CmEvent> TestChannel::ReadAll() {
  std::vector<shm::CmEvent> events;
  shm::CmEvent event;
  while (Read(&event)) events.push_back(event);
  return events;
}

void TestChannel::Fill() {
  const std::vector<char> page(4096);
  while (::write(channel->fd(), page.data(), page.size()) > 0) {
  }
}

void TestChannel::Drain() {
  std::vector<char> page(4096);
  while (::read(reader_.get(), page.data(), page.size()) > 0) {
  }
}

}  // namespace rdmad::cm
