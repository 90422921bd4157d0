// The UD QP of a CM id in the UDP port space, with receives posted: our end of udaddy(1) and mckey(1), test programs of
// rdma-core. Each of their datagrams carries the sender's QP number as immediate data.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdmad/rdmad.h"

namespace rdmad::testing {

class Datagrams {
 public:
  // Makes the QP of `id`, which is bound to a device, and posts `slots` receives of up to `size_bytes`.
  static absl::StatusOr<Datagrams> Open(const Client& client, CmId& id, Pool& pool, uint32_t slots, size_t size_bytes);

  // The next datagram, which must be `size_bytes` long and carry the number of the QP that sent it.
  // Errors: DeadlineExceeded; DataLoss (another length or immediate).
  absl::StatusOr<Wc> Receive(absl::Duration timeout);
  // Sends one of `size_bytes` with our QP's number, and waits for its completion.
  absl::Status Send(const AddressHandle& ah, uint32_t qpn, uint32_t qkey);
  // The way back to the sender of what Receive returned.
  absl::StatusOr<AddressHandle> WayBack(const Wc& wc) const;

 private:
  std::byte* Slot(uint64_t index) const { return buffer_.data() + index * (size_bytes_ + kGrhBytes); }

  size_t size_bytes_ = 0;
  Buffer buffer_;
  ProtectionDomain pd_{nullptr};
  MemoryRegion mr_;
  CompletionQueue sends_, receives_;
  QueuePair qp_;
  uint32_t slots_ = 0;
};

}  // namespace rdmad::testing
