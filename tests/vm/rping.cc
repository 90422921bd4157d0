#include "tests/vm/rping.h"

#include <endian.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/status_macros.h"

namespace rdmad::testing {
namespace {

constexpr size_t kMessageBytes = 16;
constexpr absl::Duration kPatience = absl::Seconds(120);

std::array<std::byte, kMessageBytes> Encode(const RemoteBuffer& buffer) {
  std::array<std::byte, kMessageBytes> message;
  const uint64_t addr_be = htobe64(buffer.addr);
  const uint32_t rkey_be = htobe32(buffer.rkey);
  const uint32_t size_be = htobe32(static_cast<uint32_t>(buffer.length_bytes));
  std::memcpy(message.data(), &addr_be, 8);
  std::memcpy(message.data() + 8, &rkey_be, 4);
  std::memcpy(message.data() + 12, &size_be, 4);
  return message;
}

absl::StatusOr<RemoteBuffer> Decode(std::span<const std::byte> message) {
  if (message.size() != kMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", message.size(), " bytes"));
  }
  uint64_t addr_be;
  uint32_t rkey_be, size_be;
  std::memcpy(&addr_be, message.data(), 8);
  std::memcpy(&rkey_be, message.data() + 8, 4);
  std::memcpy(&size_be, message.data() + 12, 4);
  return RemoteBuffer{.addr = be64toh(addr_be), .length_bytes = be32toh(size_be), .rkey = be32toh(rkey_be)};
}

// The server's answers mean something by coming, not by what is in them.
absl::Status Answer(Endpoint& endpoint) {
  const std::array<std::byte, kMessageBytes> nothing{};
  return endpoint.SendCopy(std::span<const std::byte>(nothing), kPatience);
}

absl::Status ReceiveAnswer(Endpoint& endpoint) {
  RD_ASSIGN_OR_RETURN(const Buffer answer, endpoint.Receive(kPatience));
  if (answer.size() == kMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an answer of ", answer.size(), " bytes"));
}

absl::Status Compare(std::string_view what, std::string_view text, std::string_view expected) {
  if (text == expected) return absl::OkStatus();
  const auto differs = std::mismatch(text.begin(), text.end(), expected.begin(), expected.end());
  return absl::DataLossError(absl::StrCat(std::string(what), ": ", text.size(), " of ", expected.size(),
                                          " bytes, different from byte ", differs.first - text.begin()));
}

}  // namespace

std::string RpingText(int round, size_t size_bytes) {
  std::string text = absl::StrCat("rdma-ping-", round, ": ");
  constexpr int kLetters = 'z' - 'A' + 1;
  int letter = round % kLetters;
  text.reserve(size_bytes);
  while (text.size() < size_bytes) text.push_back(static_cast<char>('A' + letter++ % kLetters));
  text.resize(size_bytes);
  text.back() = '\0';
  return text;
}

absl::StatusOr<RemoteBuffer> ReceiveRpingBuffer(Endpoint& endpoint) {
  RD_ASSIGN_OR_RETURN(const Buffer message, endpoint.Receive(kPatience));
  return Decode(message.bytes());
}

absl::Status SendRpingBuffer(Endpoint& endpoint, const RemoteBuffer& buffer) {
  const auto message = Encode(buffer);
  return endpoint.SendCopy(std::span<const std::byte>(message), kPatience);
}

absl::StatusOr<int> ServeRping(Endpoint& endpoint, Pool& pool, size_t size_bytes) {
  RD_ASSIGN_OR_RETURN(Buffer text, pool.Allocate(size_bytes));
  for (int round = 0;; ++round) {
    absl::StatusOr<RemoteBuffer> source = ReceiveRpingBuffer(endpoint);
    if (!source.ok() && IsClosed(source.status())) return round;
    RD_RETURN_IF_ERROR(source.status());
    std::fill(text.bytes().begin(), text.bytes().end(), std::byte{0xee});
    RD_RETURN_IF_ERROR(endpoint.Read(text, *source));
    RD_RETURN_IF_ERROR(Compare("read", text.text(), RpingText(round, size_bytes)));
    RD_RETURN_IF_ERROR(Answer(endpoint));
    RD_ASSIGN_OR_RETURN(const RemoteBuffer sink, ReceiveRpingBuffer(endpoint));
    RD_RETURN_IF_ERROR(endpoint.Write(text, sink));
    RD_RETURN_IF_ERROR(Answer(endpoint));
  }
}

absl::Status PingRping(Endpoint& endpoint, Pool& pool, size_t size_bytes, int rounds) {
  RD_ASSIGN_OR_RETURN(Buffer source, pool.Allocate(size_bytes));
  RD_ASSIGN_OR_RETURN(Buffer sink, pool.Allocate(size_bytes));
  RD_ASSIGN_OR_RETURN(const MemoryRegion source_region, endpoint.Share(source, kAccessRemoteRead));
  RD_ASSIGN_OR_RETURN(const MemoryRegion sink_region, endpoint.Share(sink, kAccessRemoteWrite));
  for (int round = 0; round < rounds; ++round) {
    const std::string text = RpingText(round, size_bytes);
    std::memcpy(source.data(), text.data(), size_bytes);
    std::fill(sink.bytes().begin(), sink.bytes().end(), std::byte{0xee});
    RD_RETURN_IF_ERROR(SendRpingBuffer(endpoint, Endpoint::Describe(source_region)));
    RD_RETURN_IF_ERROR(ReceiveAnswer(endpoint));
    RD_RETURN_IF_ERROR(SendRpingBuffer(endpoint, Endpoint::Describe(sink_region)));
    RD_RETURN_IF_ERROR(ReceiveAnswer(endpoint));
    RD_RETURN_IF_ERROR(Compare("written", sink.text(), text));
  }
  return absl::OkStatus();
}

}  // namespace rdmad::testing
