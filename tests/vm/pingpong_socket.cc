#include "tests/vm/pingpong_socket.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/status_macros.h"

namespace rdmad::testing {
namespace {

// "LID:QPN:PSN:GID" with its terminator.
constexpr size_t kTextBytes = 52;
const std::string kDone("done", 5);

absl::StatusOr<QpAddress> Decode(const std::string& text) {
  QpAddress out;
  unsigned lid = 0;
  char gid[33] = {};
  if (std::sscanf(text.c_str(), "%x:%x:%x:%32s", &lid, &out.qpn, &out.psn, gid) != 4) {
    return absl::InvalidArgumentError(absl::StrCat("a pingpong does not say \"", text.c_str(), "\""));
  }
  for (size_t i = 0; i < out.gid.size(); ++i) {
    unsigned byte = 0;
    std::sscanf(gid + 2 * i, "%2x", &byte);
    out.gid[i] = static_cast<uint8_t>(byte);
  }
  return out;
}

std::string Encode(const QpAddress& address) {
  std::string text = absl::StrFormat("0000:%06x:%06x:", address.qpn, address.psn);
  for (const uint8_t byte : address.gid) absl::StrAppendFormat(&text, "%02x", byte);
  text.push_back('\0');
  return text;
}

}  // namespace

absl::Status PingpongSocket::Send(const std::vector<QpAddress>& ours) {
  for (const QpAddress& address : ours) {
    RD_RETURN_IF_ERROR(socket_.Send(Encode(address)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<QpAddress>> PingpongSocket::Receive(size_t count) {
  std::vector<QpAddress> out;
  for (size_t i = 0; i < count; ++i) {
    RD_ASSIGN_OR_RETURN(const std::string text, socket_.Receive(kTextBytes));
    RD_ASSIGN_OR_RETURN(out.emplace_back(), Decode(text));
  }
  return out;
}

absl::Status PingpongSocket::SendDone() { return socket_.Send(kDone); }

absl::Status PingpongSocket::ReceiveDone() {
  RD_ASSIGN_OR_RETURN(const std::string text, socket_.Receive(kDone.size()));
  return text == kDone ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat("not \"done\" but \"", text, "\""));
}

}  // namespace rdmad::testing
