// The two sides of rping(1), a test program of rdma-core, over the SDK, so that the kernel's stack can be the other end.
//
// In each round the client names a source buffer in a message, the server reads it by RDMA READ and answers; then the client
// names a sink, the server writes the same text there by RDMA WRITE and answers. All messages are 16 bytes; those of the
// client hold address, rkey and size of a buffer, big-endian.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdmad/rdmad.h"

namespace rdmad::testing {

// What the client of rping offers in a round: a text with its terminator, size_bytes in all.
std::string RpingText(int round, size_t size_bytes);

// One message of a client.
absl::StatusOr<RemoteBuffer> ReceiveRpingBuffer(Endpoint& endpoint);
absl::Status SendRpingBuffer(Endpoint& endpoint, const RemoteBuffer& buffer);

// Serves a client until it disconnects; returns how many rounds were complete. Errors: DataLoss (not the text that a client
// with this size sends), InvalidArgument (not a message of rping), and those of the Endpoint.
absl::StatusOr<int> ServeRping(Endpoint& endpoint, Pool& pool, size_t size_bytes);

// Pings a server. Errors: DataLoss (what came back is not what was offered), and those of the Endpoint.
absl::Status PingRping(Endpoint& endpoint, Pool& pool, size_t size_bytes, int rounds);

}  // namespace rdmad::testing
