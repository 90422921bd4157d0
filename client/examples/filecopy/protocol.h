// What the two ends of a file copy say to each other.
//
// Control messages are plain sends; the bytes of the file travel, by the mode that the sender chose,
//   send   as sends with immediate data, one chunk each; the receiver says how many more it can take (kCredit);
//   write  as RDMA WRITEs with immediate data into slots of memory that the receiver has opened (kReady);
//   read   by RDMA READs of the receiver from slots that the sender has opened (kOffer) and filled (kFilled).
// Chunk n uses slot n modulo the number of slots. In the end the sender tells its hash and the receiver what came of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "rdmad/rdmad.h"

namespace filecopy {

enum class Mode : uint8_t { kSend = 0, kWrite = 1, kRead = 2 };

enum class MessageType : uint8_t {
  kOffer = 1,   // sender: this file, in this mode
  kReady = 2,   // receiver: go ahead
  kCredit = 3,  // receiver: `count` more chunks
  kFilled = 4,  // sender, mode read: the next chunk is in its slot
  kDone = 5,    // sender: that was all; hash
  kResult = 6,  // receiver: the end, well or not
};

inline constexpr uint32_t kMagic = 0x52444643;  // "RDFC"
inline constexpr uint32_t kVersion = 1;
inline constexpr size_t kHashBytes = 32;
using Hash = std::array<uint8_t, kHashBytes>;

// One message of any type; which fields count is said at MessageType. Sent as fixed big-endian fields and a text.
struct Message {
  MessageType type = MessageType::kOffer;
  Mode mode = Mode::kSend;     // kOffer
  bool ok = true;              // kReady, kResult
  uint32_t chunk_bytes = 0;    // kOffer
  uint32_t slot_count = 0;     // kOffer, kReady
  uint32_t count = 0;          // kCredit
  uint64_t file_bytes = 0;     // kOffer
  rdmad::RemoteBuffer slots;   // kOffer in mode read, kReady in mode write
  Hash hash = {};              // kDone, kResult
  std::string text;            // kOffer: the file's name; kReady, kResult: what went wrong
};

inline constexpr size_t kMaxTextBytes = 400;
inline constexpr size_t kMaxMessageBytes = 96 + kMaxTextBytes;

std::string Encode(const Message& message);
// Errors: InvalidArgument (not a message of this protocol, or of another version).
absl::StatusOr<Message> Decode(std::string_view bytes);

// The next control message. Errors: those of Receive and Decode; Internal if a chunk came instead.
absl::StatusOr<Message> ReceiveMessage(rdmad::Endpoint& endpoint);
absl::Status SendMessage(rdmad::Endpoint& endpoint, rdmad::Pool& pool, const Message& message);

}  // namespace filecopy
