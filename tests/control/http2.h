// HTTP/2 by hand, for what no library's client would send.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace rdmad::testing::http2 {

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kRstStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoaway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
inline constexpr uint8_t kEndStream = 1;
inline constexpr uint8_t kEndHeaders = 4;

// A frame (RFC 9113, 4.1).
inline std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  const auto byte = [](size_t value) { return static_cast<char>(value & 0xff); };
  const size_t length = payload.size();
  const std::string head = {byte(length >> 16), byte(length >> 8), byte(length),
                            byte(type),         byte(flags),       byte(stream >> 24),
                            byte(stream >> 16), byte(stream >> 8), byte(stream)};
  return head + payload;
}

// What a client says first.
inline std::string Hello() {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");
}

// A header field that is spelled out (RFC 7541, 6.2.2); name and value below 16 KiB.
inline std::string Field(const std::string& name, const std::string& value) {
  const auto text = [](const std::string& words) {
    std::string length(1, static_cast<char>(std::min<size_t>(words.size(), 127)));
    if (size_t rest = words.size(); rest >= 127) {
      rest -= 127;
      length += {static_cast<char>((rest & 127) | 128), static_cast<char>(rest >> 7)};
    }
    return length + words;
  };
  return std::string(1, '\0') + text(name) + text(value);
}

// The fields of a gRPC call.
inline std::string CallFields(const std::string& method) {
  return Field(":method", "POST") + Field(":scheme", "http") + Field(":path", method) +
         Field(":authority", "x") + Field("te", "trailers") +
         Field("content-type", "application/grpc");
}

// A message as gRPC frames it.
inline std::string Message(const std::string& bytes, char compressed = 0) {
  const auto length = static_cast<uint32_t>(bytes.size());
  return std::string{compressed, static_cast<char>(length >> 24), static_cast<char>(length >> 16),
                     static_cast<char>(length >> 8), static_cast<char>(length)} +
         bytes;
}

}  // namespace rdmad::testing::http2
