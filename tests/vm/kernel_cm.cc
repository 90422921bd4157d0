#include "tests/vm/kernel_cm.h"

#include <rdma/rdma_verbs.h>

#include <cerrno>

#include "absl/time/clock.h"

namespace rdmad::testing {

KernelId MakeKernelId(const char* address, bool passive) {
  rdma_addrinfo hints = {};
  hints.ai_port_space = RDMA_PS_TCP;
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
  Outcome outcome;
  if (result != 0) outcome.error = errno;
  if (id->event == nullptr) return outcome;
  outcome.event = id->event->event;
  outcome.status = id->event->status;
  const rdma_conn_param& param = id->event->param.conn;
  if (param.private_data != nullptr) {
    outcome.data.assign(static_cast<const char*>(param.private_data), param.private_data_len);
  }
  return outcome;
}

Outcome KernelConnects(rdma_cm_id* id, const std::string& data) {
  rdma_conn_param param = {};
  param.private_data = data.data();
  param.private_data_len = static_cast<uint8_t>(data.size());
  param.responder_resources = param.initiator_depth = 1;
  param.retry_count = param.rnr_retry_count = 7;
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

}  // namespace rdmad::testing
