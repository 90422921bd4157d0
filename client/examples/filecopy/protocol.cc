#include "client/examples/filecopy/protocol.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace filecopy {
namespace {

template <typename T>
void Put(std::string* out, T value) {
  for (int shift = 8 * (static_cast<int>(sizeof(T)) - 1); shift >= 0; shift -= 8) {
    out->push_back(static_cast<char>(value >> shift));
  }
}

// Takes big-endian numbers off the front of `bytes`; notes when they run out.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T Get() {
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value = value << 8 | static_cast<uint8_t>(bytes_[i]);
    bytes_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }
  std::string_view rest() const { return bytes_; }
  bool ok() const { return ok_; }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace

std::string Encode(const Message& message) {
  std::string out;
  Put(&out, kMagic);
  Put(&out, kVersion);
  Put(&out, static_cast<uint8_t>(message.type));
  Put(&out, static_cast<uint8_t>(message.mode));
  Put(&out, static_cast<uint8_t>(message.ok));
  Put(&out, message.chunk_bytes);
  Put(&out, message.slot_count);
  Put(&out, message.count);
  Put(&out, message.file_bytes);
  Put(&out, message.slots.addr);
  Put(&out, message.slots.length_bytes);
  Put(&out, message.slots.rkey);
  out.append(message.hash.begin(), message.hash.end());
  out.append(message.text, 0, kMaxTextBytes);
  return out;
}

absl::StatusOr<Message> Decode(std::string_view bytes) {
  Reader reader(bytes);
  const uint32_t magic = reader.Get<uint32_t>();
  const uint32_t version = reader.Get<uint32_t>();
  if (!reader.ok() || magic != kMagic) return absl::InvalidArgumentError("the peer is not a filecopy");
  if (version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("the peer speaks version ", version, ", this one ", kVersion));
  }
  Message message;
  message.type = static_cast<MessageType>(reader.Get<uint8_t>());
  message.mode = static_cast<Mode>(reader.Get<uint8_t>());
  message.ok = reader.Get<uint8_t>() != 0;
  message.chunk_bytes = reader.Get<uint32_t>();
  message.slot_count = reader.Get<uint32_t>();
  message.count = reader.Get<uint32_t>();
  message.file_bytes = reader.Get<uint64_t>();
  message.slots.addr = reader.Get<uint64_t>();
  message.slots.length_bytes = reader.Get<uint64_t>();
  message.slots.rkey = reader.Get<uint32_t>();
  const std::string_view rest = reader.rest();
  if (!reader.ok() || rest.size() < kHashBytes || message.mode > Mode::kRead) {
    return absl::InvalidArgumentError(absl::StrCat("a malformed message of ", bytes.size(), " bytes"));
  }
  std::copy_n(rest.begin(), kHashBytes, message.hash.begin());
  message.text = std::string(rest.substr(kHashBytes));
  return message;
}

absl::StatusOr<Message> ReceiveMessage(rdmad::Endpoint& endpoint) {
  absl::StatusOr<rdmad::Buffer> buffer = endpoint.Receive();
  if (!buffer.ok()) return buffer.status();
  if (buffer->has_imm()) return absl::InternalError("a chunk came where a message was due");
  return Decode(buffer->text());
}

absl::Status SendMessage(rdmad::Endpoint& endpoint, rdmad::Pool& pool, const Message& message) {
  absl::StatusOr<rdmad::Buffer> buffer = pool.AllocateCopy(Encode(message));
  if (absl::IsResourceExhausted(buffer.status())) {
    // All of it is under way; what has arrived comes back.
    if (absl::Status flushed = endpoint.Flush(); !flushed.ok()) return flushed;
    buffer = pool.AllocateCopy(Encode(message));
  }
  if (!buffer.ok()) return buffer.status();
  return endpoint.Send(std::move(buffer).value());
}

}  // namespace filecopy
