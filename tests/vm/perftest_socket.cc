#include "tests/vm/perftest_socket.h"

#include <endian.h>

#include <array>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/status_macros.h"

namespace rdmad::testing {
namespace {

constexpr size_t kVersionBytes = 16;
constexpr char kVersion[] = "6.06";
// Of the buffer that short messages walk through, and of a cache line: the programs lay their memory out by the larger ones.
constexpr uint32_t kCycleBytes = 4096;
constexpr uint32_t kCacheLineBytes = 64;
constexpr size_t kSizeBytes = 4;
constexpr size_t kMtuBytes = 2;
constexpr size_t kFigureBytes = 8;
// "LID:READS:QPN:PSN:RKEY:ADDR:" and the GID's bytes, ":SRQN:", with a terminator.
constexpr size_t kLineBytes = 108;
constexpr char kLineStart[] = "0000:";  // RoCE has no LIDs
const std::string kDone("done", 5);

std::string Padded(std::string text, size_t bytes) {
  text.resize(bytes, '\0');
  return text;
}

std::string Size(uint32_t value) {
  const uint32_t big = htobe32(value);
  return std::string(reinterpret_cast<const char*>(&big), sizeof(big));
}

std::string Figure(uint64_t value) {
  const uint64_t big = htobe64(value);
  return std::string(reinterpret_cast<const char*>(&big), sizeof(big));
}

std::string MtuText(Mtu mtu) { return Padded(absl::StrCat(static_cast<int>(mtu)), kMtuBytes); }

std::string Encode(const PerftestEnd& end) {
  std::string line = absl::StrFormat("%s%04x:%06x:%06x:%08x:%016x:", kLineStart, end.reads, end.qp.qpn, end.qp.psn,
                                     end.rkey, end.addr);
  for (const uint8_t byte : end.qp.gid) absl::StrAppendFormat(&line, "%02x:", byte);
  absl::StrAppend(&line, "00000000:");
  return Padded(line, kLineBytes);
}

absl::StatusOr<PerftestEnd> Decode(const std::string& line) {
  PerftestEnd out;
  int read = 0;
  if (std::sscanf(line.c_str(), "%*x:%x:%x:%x:%x:%" SCNx64 ":%n", &out.reads, &out.qp.qpn, &out.qp.psn, &out.rkey,
                  &out.addr, &read) != 5) {
    return absl::InvalidArgumentError(absl::StrCat("perftest does not say \"", line.c_str(), "\""));
  }
  for (size_t i = 0; i < out.qp.gid.size(); ++i) {
    unsigned byte = 0;
    std::sscanf(line.c_str() + read + 3 * i, "%2x", &byte);
    out.qp.gid[i] = static_cast<uint8_t>(byte);
  }
  return out;
}

}  // namespace

absl::Status PerftestSocket::Greet(Mtu mtu) {
  for (const std::string& text :
       {Padded(kVersion, kVersionBytes), Size(kCycleBytes), Size(kCacheLineBytes), MtuText(mtu)}) {
    RD_RETURN_IF_ERROR(socket_.Send(text));
    RD_ASSIGN_OR_RETURN(const std::string answer, socket_.Receive(text.size()));
    if (answer != text) {
      return absl::InvalidArgumentError(absl::StrCat("perftest answers \"", absl::string_view(answer), "\" to \"", text, "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status PerftestSocket::AnswerGreeting(Mtu mtu) {
  for (const size_t bytes : {kVersionBytes, kSizeBytes, kSizeBytes, kMtuBytes}) {
    RD_ASSIGN_OR_RETURN(const std::string said, socket_.Receive(bytes));
    if (bytes == kMtuBytes && said != MtuText(mtu)) return absl::InvalidArgumentError("perftest has another path MTU");
    RD_RETURN_IF_ERROR(socket_.Send(said));
  }
  return absl::OkStatus();
}

absl::StatusOr<PerftestEnd> PerftestSocket::Exchange(const PerftestEnd& ours) {
  RD_RETURN_IF_ERROR(Say(ours));
  return Hear();
}

absl::Status PerftestSocket::Say(const PerftestEnd& ours) { return socket_.Send(Encode(ours)); }

absl::StatusOr<PerftestEnd> PerftestSocket::Hear() {
  RD_ASSIGN_OR_RETURN(const std::string line, socket_.Receive(kLineBytes));
  ++heard_;
  return Decode(line);
}

absl::Status PerftestSocket::ReportFigures(size_t bytes, int rounds) {
  const uint64_t some = std::bit_cast<uint64_t>(1.5);  // bandwidths and rate
  for (const uint64_t figure : {uint64_t{bytes}, static_cast<uint64_t>(rounds), some, some, some}) {
    RD_RETURN_IF_ERROR(socket_.Send(Figure(figure)));
    // A server that has measured nothing says anything.
    RD_RETURN_IF_ERROR(socket_.Receive(kFigureBytes).status());
  }
  return absl::OkStatus();
}

absl::Status PerftestSocket::SayDone() { return socket_.Send(kDone); }

absl::StatusOr<bool> PerftestSocket::AnswerWhatIsThere(const PerftestEnd& ours) {
  while (socket_.IsReadable()) {
    RD_ASSIGN_OR_RETURN(const std::string start, socket_.Peek(kDone.size()));
    // A latency test of writes just hangs up.
    if (start.empty() || start == kDone) return false;
    if (start == kLineStart) {
      RD_RETURN_IF_ERROR(Hear().status());
      RD_RETURN_IF_ERROR(Say(ours));
    } else {
      RD_ASSIGN_OR_RETURN(const std::string figure, socket_.Receive(kFigureBytes));
      RD_RETURN_IF_ERROR(socket_.Send(figure));
    }
  }
  return true;
}

}  // namespace rdmad::testing
