// Ends of connections of the kernel, by librdmacm in the test's own process: synchronous ids, with a QP each.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace rdmad::testing {

inline constexpr char kKernelPort[] = "7471";

struct EpDelete {
  void operator()(rdma_cm_id* id) const noexcept { rdma_destroy_ep(id); }
};
using KernelId = std::unique_ptr<rdma_cm_id, EpDelete>;

// Resolved or bound, synchronous, with a QP. Null with errno when that fails.
KernelId MakeKernelId(const char* address, bool passive, rdma_port_space port_space = RDMA_PS_TCP);

// What an end of the kernel saw: the result of its call, and what the event brought.
struct Outcome {
  int error = 0;
  int event = -1;
  int status = 0;
  std::string data = {};
  uint32_t qpn = 0;   // RDMA_PS_UDP: whom to send to
  uint32_t qkey = 0;
};

Outcome OutcomeOf(rdma_cm_id* id, int result);

// Connects a resolved id.
Outcome KernelConnects(rdma_cm_id* id, const std::string& data);
// An id of its own, which is gone when it returns.
Outcome KernelConnects(const char* address, const std::string& data);

// Accepts or rejects a request with `data`.
Outcome KernelAnswers(rdma_cm_id* request, bool accept, const std::string& data);
// Takes one request of a listener, waits, and answers it; its id is gone when it returns.
Outcome KernelServes(rdma_cm_id* listener, bool accept, const std::string& data,
                     absl::Duration wait = absl::ZeroDuration());

// A resolved id without a QP, whose events come when they come: for what an application may do before they do.
class KernelAsyncId {
 public:
  // Null with errno when that fails.
  static std::unique_ptr<KernelAsyncId> Resolved(const char* address, rdma_port_space port_space = RDMA_PS_TCP);
  ~KernelAsyncId();
  KernelAsyncId(const KernelAsyncId&) = delete;
  KernelAsyncId& operator=(const KernelAsyncId&) = delete;

  rdma_cm_id* id() { return id_; }
  // False with errno when the call fails. `qpn` is the number of the QP that the peer hears.
  bool Connect(uint32_t qpn);
  // The next event; none: `event` is -1.
  Outcome Next(absl::Duration patience);

 private:
  KernelAsyncId() = default;

  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
};

}  // namespace rdmad::testing
