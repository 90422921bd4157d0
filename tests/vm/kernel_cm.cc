#include "tests/vm/kernel_cm.h"

#include <poll.h>
#include <rdma/rdma_verbs.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/time/clock.h"

namespace rdmad::testing {
namespace {

constexpr int kResolveMs = 10'000;

rdma_conn_param ConnectParam() {
  rdma_conn_param param = {};
  param.responder_resources = param.initiator_depth = 1;
  param.retry_count = param.rnr_retry_count = 7;
  return param;
}

Outcome OutcomeOf(const rdma_cm_event& event) {
  Outcome outcome{.event = event.event, .status = event.status};
  const rdma_conn_param& param = event.param.conn;
  if (param.private_data != nullptr) {
    outcome.data.assign(static_cast<const char*>(param.private_data), param.private_data_len);
  }
  if (event.id->ps == RDMA_PS_UDP) {
    outcome.qpn = event.param.ud.qp_num;
    outcome.qkey = event.param.ud.qkey;
  }
  return outcome;
}

}  // namespace

KernelId MakeKernelId(const char* address, bool passive, rdma_port_space port_space) {
  rdma_addrinfo hints = {};
  hints.ai_port_space = port_space;
  if (passive) hints.ai_flags = RAI_PASSIVE;
  rdma_addrinfo* info = nullptr;
  if (rdma_getaddrinfo(address, kKernelPort, &hints, &info) != 0) return nullptr;
  ibv_qp_init_attr init = {};
  init.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  rdma_cm_id* id = nullptr;
  const int failed = rdma_create_ep(&id, info, nullptr, &init);
  rdma_freeaddrinfo(info);
  return failed != 0 ? nullptr : KernelId(id);
}

Outcome OutcomeOf(rdma_cm_id* id, int result) {
  const int error = result != 0 ? errno : 0;
  Outcome outcome;
  if (id->event != nullptr) outcome = OutcomeOf(*id->event);
  outcome.error = error;
  return outcome;
}

Outcome KernelConnects(rdma_cm_id* id, const std::string& data) {
  rdma_conn_param param = ConnectParam();
  param.private_data = data.data();
  param.private_data_len = static_cast<uint8_t>(data.size());
  return OutcomeOf(id, rdma_connect(id, &param));
}

Outcome KernelConnects(const char* address, const std::string& data) {
  const KernelId id = MakeKernelId(address, false);
  if (id == nullptr) return {.error = errno};
  return KernelConnects(id.get(), data);
}

Outcome KernelAnswers(rdma_cm_id* request, bool accept, const std::string& data) {
  Outcome outcome = OutcomeOf(request, 0);
  if (accept) {
    rdma_conn_param param = {};
    param.private_data = data.data();
    param.private_data_len = static_cast<uint8_t>(data.size());
    param.responder_resources = param.initiator_depth = 1;
    param.rnr_retry_count = 7;
    if (rdma_accept(request, &param) != 0) outcome.error = errno;
  } else if (rdma_reject(request, data.data(), static_cast<uint8_t>(data.size())) != 0) {
    outcome.error = errno;
  }
  return outcome;
}

Outcome KernelServes(rdma_cm_id* listener, bool accept, const std::string& data, absl::Duration wait) {
  rdma_cm_id* request = nullptr;
  if (rdma_get_request(listener, &request) != 0) return {.error = errno};
  const KernelId id(request);
  absl::SleepFor(wait);
  return KernelAnswers(request, accept, data);
}

std::unique_ptr<KernelAsyncId> KernelAsyncId::Resolved(const char* address, rdma_port_space port_space) {
  std::unique_ptr<KernelAsyncId> out(new KernelAsyncId);
  out->channel_ = rdma_create_event_channel();
  if (out->channel_ == nullptr || rdma_create_id(out->channel_, &out->id_, nullptr, port_space) != 0) return nullptr;
  rdma_addrinfo hints = {};
  hints.ai_port_space = port_space;
  rdma_addrinfo* info = nullptr;
  if (rdma_getaddrinfo(address, kKernelPort, &hints, &info) != 0) return nullptr;
  const int failed = rdma_resolve_addr(out->id_, nullptr, info->ai_dst_addr, kResolveMs);
  rdma_freeaddrinfo(info);
  if (failed != 0 || out->Next(absl::Milliseconds(2 * kResolveMs)).event != RDMA_CM_EVENT_ADDR_RESOLVED) return nullptr;
  if (rdma_resolve_route(out->id_, kResolveMs) != 0) return nullptr;
  return out->Next(absl::Milliseconds(2 * kResolveMs)).event == RDMA_CM_EVENT_ROUTE_RESOLVED ? std::move(out) : nullptr;
}

KernelAsyncId::~KernelAsyncId() {
  if (id_ != nullptr) rdma_destroy_id(id_);
  if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
}

bool KernelAsyncId::Connect(uint32_t qpn) {
  rdma_conn_param param = ConnectParam();
  param.qp_num = qpn;
  return rdma_connect(id_, &param) == 0;
}

Outcome KernelAsyncId::Next(absl::Duration patience) {
  pollfd ready{channel_->fd, POLLIN, 0};
  if (::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) != 1) return {};
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel_, &event) != 0) return {.error = errno};
  const Outcome outcome = OutcomeOf(*event);
  rdma_ack_cm_event(event);
  return outcome;
}

}  // namespace rdmad::testing
