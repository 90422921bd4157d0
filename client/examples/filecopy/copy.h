// The two ends of a file copy.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/examples/filecopy/protocol.h"
#include "rdmad/rdmad.h"

namespace filecopy {

struct SendOptions {
  std::string file;
  std::string peer;  // host:port
  Mode mode = Mode::kWrite;
  uint32_t chunk_bytes = 256 * 1024;
  uint32_t slot_count = 16;  // chunks under way at a time
  bool quiet = false;        // no bar
};

struct ReceiveOptions {
  std::string address;  // address:port to listen on
  std::string output;   // file or folder; empty: the sender's name, here
  uint32_t max_chunk_bytes = 1 << 20;
  bool quiet = false;
};

// Of a copy that went well.
struct Outcome {
  std::string file;  // as it is called here
  uint64_t bytes = 0;
  double seconds = 0;  // from the receiver's consent to its confirmation
  Mode mode = Mode::kWrite;
  std::string sha256;
};

const char* ModeName(Mode mode);

// Errors: NotFound and the like (the file), those of Endpoint::Connect, what the receiver says, DataLoss (hashes differ).
absl::StatusOr<Outcome> SendFile(const rdmad::Client& client, const SendOptions& options);
// Accepts one sender. Nothing is left behind of a copy that failed.
absl::StatusOr<Outcome> ReceiveFile(const rdmad::Client& client, const ReceiveOptions& options);

}  // namespace filecopy
