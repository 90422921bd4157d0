// What the ICRC costs: prints nanoseconds per packet for what a sender and a receiver do. No
// verdict.
//
//   bazel run --config=opt //tests/bench:icrc_bench

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "daemon/wire/icrc.h"
#include "daemon/wire/icrc_id.h"
#include "daemon/wire/icrc_run.h"
#include "daemon/wire/packet.h"

namespace rdmad::wire {
namespace {

// Keeps the compiler from dropping or hoisting work whose result nobody uses.
template <typename T>
void KeepResult(const T& value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

// The best of five runs: what disturbs a run only ever makes it slower.
template <typename Work>
double NanosecondsPer(int rounds, Work work) {
  double best = 1e18;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; ++round) work(static_cast<uint32_t>(round));
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / rounds);
  }
  return best;
}

void Print(const char* what, size_t payload_bytes, double ns) {
  std::printf("%-44s %6zu B %9.1f ns", what, payload_bytes, ns);
  if (payload_bytes >= 1024) std::printf("  %6.1f GB/s", static_cast<double>(payload_bytes) / ns);
  std::printf("\n");
}

void BenchPacket(size_t payload_bytes, int rounds) {
  const IpAddress a = IpAddress::FromV4(10, 77, 0, 1);
  const IpAddress b = IpAddress::FromV4(10, 77, 0, 2);
  const IcrcFlow flow(a, b, kRoceUdpPort, kRoceUdpPort);
  const std::vector<uint8_t> payload(payload_bytes, 0x5a);
  PacketFields fields;
  fields.opcode = Opcode::kRcWriteMiddle;
  const size_t bytes = UdpPayloadBytes(fields.opcode, payload_bytes);
  std::array<uint8_t, kMaxHeaderBytes> head;
  std::array<uint8_t, kMaxTrailerBytes> tail;
  IcrcRun run(flow);

  // `icrc` is an IcrcFlow or an IcrcRun.
  const auto print_send = [&](const char* what, auto& icrc) {
    Print(what, payload_bytes, NanosecondsPer(rounds, [&](uint32_t round) {
            fields.psn = Psn(round);
            const size_t head_bytes = BuildHeaders(fields, payload_bytes, head);
            uint32_t crc = icrc.Begin(bytes, std::span(head).first(head_bytes));
            crc = IcrcUpdate(crc, payload);
            KeepResult(BuildTrailer(payload_bytes, crc, tail));
            KeepResult(tail);
          }));
  };
  print_send("send: headers, ICRC; the next of a batch", run);
  print_send("send: headers, ICRC over header and payload", flow);

  std::vector<uint8_t> packet(bytes);
  const size_t head_bytes = BuildHeaders(fields, payload_bytes, head);
  std::copy_n(head.begin(), head_bytes, packet.begin());
  std::copy(payload.begin(), payload.end(), packet.begin() + static_cast<ptrdiff_t>(head_bytes));
  const uint32_t icrc = flow.Compute(std::span(packet).first(bytes - kIcrcBytes));
  StoreIcrc(IcrcForGsoIndex(icrc, 0x1234, bytes), std::span(packet).last<kIcrcBytes>());
  Print("receive: parse, flow, ICRC, unknown id", payload_bytes,
        NanosecondsPer(rounds, [&](uint32_t round) {
          packet[11] = static_cast<uint8_t>(round);
          PacketView view;
          KeepResult(ParsePacket(packet, &view));
          const IcrcFlow receiver(a, b, kRoceUdpPort, kRoceUdpPort);
          KeepResult(IcrcIsGood(receiver, view.icrc, receiver.Compute(view.icrc_input), bytes));
        }));
}

void BenchParts() {
  constexpr int kRounds = 5'000'000;
  constexpr size_t kBytes = 4136;
  Print("check of an unknown id alone", 0, NanosecondsPer(kRounds, [](uint32_t round) {
          KeepResult(CheckIcrcUnknownId(round, 0x12345678, kBytes));
        }));
  Print("term of one id", 0, NanosecondsPer(kRounds, [](uint32_t round) {
          KeepResult(IcrcIdTerm(static_cast<uint16_t>(round), kBytes));
        }));
  const GsoIcrcTerms terms(kBytes);
  Print("term of a packet of a batch", 0,
        NanosecondsPer(kRounds, [&](uint32_t round) { KeepResult(terms[round & 63]); }));
  Print("terms of a new size of batch", 0, NanosecondsPer(kRounds, [](uint32_t round) {
          KeepResult(GsoIcrcTerms(kBytes - 4 * (round & 255))[1]);
        }));
  Print("IcrcFlow", 0, NanosecondsPer(kRounds, [](uint32_t round) {
          const IcrcFlow flow(IpAddress::FromV4(round), IpAddress::FromV4(10, 77, 0, 2), 1, 2);
          KeepResult(flow);
        }));
}

}  // namespace
}  // namespace rdmad::wire

int main() {
  for (const size_t payload_bytes : {0, 64, 256, 1024})
    rdmad::wire::BenchPacket(payload_bytes, 2'000'000);
  rdmad::wire::BenchPacket(4096, 500'000);
  rdmad::wire::BenchParts();
  return 0;
}
