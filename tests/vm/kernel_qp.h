// Queue pairs of the kernel's rxe, wired by hand with libibverbs: for the operations that no stock program tries, or whose
// bytes none checks.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/vm/our_qp.h"

namespace rdmad::testing {

template <auto kDestroy>
struct VerbsDelete {
  template <typename T>
  void operator()(T* object) const noexcept {
    kDestroy(object);
  }
};
template <typename T, auto kDestroy>
using VerbsPtr = std::unique_ptr<T, VerbsDelete<kDestroy>>;

// A device with a protection domain, and memory with every right.
struct KernelHost {
  static absl::StatusOr<std::unique_ptr<KernelHost>> Open(const std::string& device, const std::string& address,
                                                          size_t bytes);

  std::byte* data() { return buffer.data(); }
  ibv_sge At(size_t offset, size_t bytes) {
    return {reinterpret_cast<uint64_t>(data() + offset), static_cast<uint32_t>(bytes), mr->lkey};
  }

  VerbsPtr<ibv_context, ibv_close_device> context;
  VerbsPtr<ibv_pd, ibv_dealloc_pd> pd;
  uint8_t gid_index = 0;  // of RoCE v2
  std::array<uint8_t, 16> gid = {};
  std::vector<std::byte> buffer;
  VerbsPtr<ibv_mr, ibv_dereg_mr> mr;
};

struct KernelQp {
  static absl::StatusOr<KernelQp> Open(KernelHost& host, ibv_qp_type type);

  QpAddress Describe(const KernelHost& host) const { return {host.gid, qp->qp_num, psn}; }
  absl::Status Connect(const KernelHost& host, const QpAddress& peer, ibv_mtu mtu);
  // Posts one work request, signaled, and waits for its completion, which may be one in error.
  absl::StatusOr<ibv_wc> Do(ibv_send_wr wr);
  absl::Status PostReceive(KernelHost& host, size_t offset, size_t bytes);
  absl::StatusOr<ibv_wc> NextReceive(absl::Duration patience = absl::Seconds(120));

  VerbsPtr<ibv_comp_channel, ibv_destroy_comp_channel> channel;  // of `receives`
  VerbsPtr<ibv_cq, ibv_destroy_cq> sends, receives;
  VerbsPtr<ibv_qp, ibv_destroy_qp> qp;
  uint32_t psn = 0xfffffd;
  uint32_t qkey = 0x11111111;
  uint8_t rnr_retry = 7;
  Route route;
};

// The index of the RoCE v2 GID of an address. Errors: NotFound.
absl::StatusOr<uint8_t> KernelGidIndex(ibv_context* context, const std::array<uint8_t, 16>& gid);
// "10.0.0.1" or "fd00::1" as GID.
std::array<uint8_t, 16> GidOf(const std::string& address);

}  // namespace rdmad::testing
