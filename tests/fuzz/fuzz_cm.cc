// MADs from a peer that may send anything, to a connection manager with a listener, a connection
// and one that is being made, and the same in the UDP port space.
#include <algorithm>
#include <cstring>

#include "tests/device/soft/cm/cm_testing.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace rdmad::fuzz {
namespace {

// Offsets in a MAD; see daemon/wire/cm.
constexpr size_t kTransactionId = 8;
constexpr size_t kLocalCommId = 24;
constexpr size_t kRemoteCommId = 28;

// Bits of a record's second byte: what is taken from the last message that the manager sent, so
// that the fuzzer need not guess ids.
enum Fit : uint8_t { kFitTransaction = 1, kFitRemoteId = 2, kFitAll = 4 };

}  // namespace

void FuzzCm(std::span<const uint8_t> bytes) {
  Input input(bytes);
  soft::TestNet net(1);
  soft::TestHost host(&net, "10.0.0.1");
  soft::TestHost other(&net, "10.0.0.2");
  soft::TestId server(&host);
  soft::ListenOn(&server, soft::Address("10.0.0.1:7000"), soft::AcceptIt);
  soft::TestId far(&other);
  soft::ConnectTo(&far, soft::Address("10.0.0.1:7000"));
  net.RunFor(10 * soft::kMs);
  soft::TestId datagrams(&host, device::PortSpace::kUdp);
  soft::ListenOn(&datagrams, soft::Address("10.0.0.1:7001"), soft::AcceptIt);
  soft::TestId asker(&host, device::PortSpace::kUdp);
  soft::ConnectTo(&asker, soft::Address("10.0.0.9:7001"));
  soft::TestId client(&host);
  soft::ConnectTo(&client, soft::Address("10.0.0.9:7000"));  // where nobody answers
  while (!input.empty()) {
    const auto kind = input.Take<uint8_t>();
    const auto fit = input.Take<uint8_t>();
    const auto length = input.Take<uint16_t>();
    switch (kind % 8) {
      default: {
        soft::Mad mad{};
        const soft::SentMad* last = nullptr;
        for (auto it = net.sent.rbegin(); it != net.sent.rend() && last == nullptr; ++it) {
          if (it->flow.local == host.ip) last = &*it;
        }
        if (last != nullptr && (fit & kFitAll) != 0) mad = last->mad;
        const auto from = input.TakeBytes(std::min<size_t>(length, mad.size()));
        std::copy(from.begin(), from.end(), mad.begin());
        if (last != nullptr && (fit & kFitTransaction) != 0) {
          std::memcpy(&mad[kTransactionId], &last->mad[kTransactionId], 8);
        }
        if (last != nullptr && (fit & kFitRemoteId) != 0) {
          std::memcpy(&mad[kRemoteCommId], &last->mad[kLocalCommId], 4);
        }
        const IpAddress from_host = (kind & 64) != 0 ? IpAddress::FromV4(10, 0, 0, 9) : other.ip;
        net.Inject({.local = from_host, .remote = host.ip}, mad);
        break;
      }
      case 5:
        if (client.endpoint != nullptr) (void)client->Disconnect();
        break;
      case 6:
        for (auto& request : server.requests) {
          if (request->endpoint != nullptr) (void)(*request)->Disconnect();
        }
        break;
      case 7:
        // Who asked, or has been asked, goes.
        if ((fit & 1) != 0) asker.endpoint.reset();
        if ((fit & 2) != 0) datagrams.requests.clear();
        if ((fit & 4) != 0) server.requests.clear();
        break;
    }
    if ((kind & 8) != 0) net.RunFor(int64_t{length} * soft::kMs / 16);
  }
  net.RunFor(60 * soft::kSecond);
}

}  // namespace rdmad::fuzz
