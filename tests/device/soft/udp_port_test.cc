// Real sockets on loopback addresses: what leaves a UdpPort, byte by byte, and what one makes of
// what it is sent.
#include "daemon/device/soft/udp_port.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/base/socket_address.h"
#include "daemon/base/unique_fd.h"
#include "daemon/wire/icrc.h"
#include "daemon/wire/icrc_id.h"
#include "daemon/wire/packet.h"
#include "gtest/gtest.h"
#include "tests/device/soft/test_net.h"
#include "tests/support/icrc_reference.h"

namespace rdmad::soft {
namespace {

using Bytes = std::vector<uint8_t>;

const IpAddress kLeft = IpAddress::FromV4(127, 0, 0, 2);
const IpAddress kRight = IpAddress::FromV4(127, 0, 0, 3);

std::unique_ptr<UdpPort> OpenOrDie(const IpAddress& address) {
  auto port = UdpPort::Open(address, testing::TestPort());
  EXPECT_TRUE(port.ok()) << port.status();
  return std::move(port).value();
}

// Any old UDP program: sees what the kernel would deliver to one, packet by packet.
class PlainSocket {
 public:
  explicit PlainSocket(const IpAddress& address, uint16_t port = testing::TestPort()) {
    sockaddr_storage name;
    const socklen_t bytes = SocketAddress{address, port}.ToSockaddr(&name);
    fd_.Reset(::socket(name.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const int size = 1 << 20;
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&name), bytes), 0)
        << address.ToString();
  }

  std::optional<Bytes> Receive() {
    Bytes bytes(65536);
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return std::nullopt;
    bytes.resize(static_cast<size_t>(got));
    return bytes;
  }

  std::vector<Bytes> ReceiveAll() {
    std::vector<Bytes> all;
    while (auto bytes = Receive()) all.push_back(*bytes);
    return all;
  }

  void SendTo(const IpAddress& peer, const Bytes& bytes) {
    sockaddr_storage name;
    const socklen_t size = SocketAddress{peer, testing::TestPort()}.ToSockaddr(&name);
    ASSERT_EQ(::sendto(fd_.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&name),
                       size),
              static_cast<ssize_t>(bytes.size()));
  }

  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// Packets that own their payload.
class PacketList {
 public:
  // `slices`: how many pieces the payload is cut into.
  void Add(wire::Opcode opcode, size_t payload_bytes, size_t slices = 1) {
    Bytes& payload = payloads_.emplace_back(payload_bytes);
    for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random_());
    std::vector<iovec>& pieces = pieces_.emplace_back();
    size_t at = 0;
    for (size_t i = 0; i < slices; ++i) {
      const size_t bytes = i + 1 == slices ? payload_bytes - at : payload_bytes / slices;
      pieces.push_back({payload.data() + at, bytes});
      at += bytes;
    }
    TxPacket& packet = packets_.emplace_back();
    packet.fields.opcode = opcode;
    packet.fields.dest_qpn = wire::Qpn(0x123456);
    packet.fields.psn = wire::Psn(static_cast<uint32_t>(0xfffff0 + packets_.size()));
    packet.fields.ack_req = packets_.size() % 3 == 0;
    packet.fields.reth = {0x1122334455667788, wire::Rkey(0xabcdef01),
                          static_cast<uint32_t>(payload_bytes)};
    packet.payload = pieces;
    packet.payload_bytes = static_cast<uint32_t>(payload_bytes);
  }

  std::span<const TxPacket> packets() const { return packets_; }
  const Bytes& payload(size_t index) const { return payloads_[index]; }
  size_t size() const { return packets_.size(); }

  // What packet `index` is to look like on the wire, up to the ICRC.
  Bytes Expected(size_t index) const {
    Bytes bytes(wire::kMaxHeaderBytes);
    bytes.resize(wire::BuildHeaders(
        packets_[index].fields, payloads_[index].size(),
        std::span<uint8_t, wire::kMaxHeaderBytes>(bytes.data(), wire::kMaxHeaderBytes)));
    bytes.insert(bytes.end(), payloads_[index].begin(), payloads_[index].end());
    bytes.resize(bytes.size() + wire::PadBytes(payloads_[index].size()));
    return bytes;
  }

 private:
  std::mt19937 random_{42};
  std::deque<Bytes> payloads_;
  std::deque<std::vector<iovec>> pieces_;
  std::vector<TxPacket> packets_;
};

// The mixture that a transport sends: a write of many packets, odd sizes, packets without payload,
// scattered payload.
PacketList Mixture() {
  using enum wire::Opcode;
  PacketList list;
  list.Add(kRcWriteFirst, 1024);
  for (int i = 0; i < 90; ++i) list.Add(kRcWriteMiddle, 1024, 1 + static_cast<size_t>(i % 5));
  list.Add(kRcWriteLast, 333);
  for (size_t bytes = 0; bytes < 9; ++bytes) list.Add(kRcSendOnly, bytes);
  for (int i = 0; i < 70; ++i) list.Add(kRcSendOnly, 7);
  for (int i = 0; i < 5; ++i) list.Add(kRcReadRequest, 0);
  for (int i = 0; i < 20; ++i) list.Add(kRcReadResponseMiddle, 4096);
  list.Add(kRcReadResponseLast, 4095);
  list.Add(kRcWriteOnly, 4096, 20);
  list.Add(kRcAck, 0);
  return list;
}

// Runs of equal packets with a shorter one at the end at most, as UDP_SEGMENT needs them; 1 for a
// packet on its own.
std::vector<uint16_t> IdsInBatches(const PacketList& list) {
  std::vector<uint16_t> ids;
  size_t segment = 0, count = 0, total = 0;
  bool closed = true;
  for (size_t i = 0; i < list.size(); ++i) {
    const size_t bytes = list.Expected(i).size() + wire::kIcrcBytes;
    // Send() stages 64 packets at a time.
    if (closed || bytes > segment || count == 64 || total + bytes > 65507 || i % 64 == 0) {
      segment = bytes;
      count = total = 0;
    }
    closed = bytes < segment;
    ids.push_back(static_cast<uint16_t>(count++));
    total += bytes;
  }
  return ids;
}

uint32_t ReferenceIcrcWithId(const Bytes& bytes, uint16_t id) {
  const auto total = static_cast<uint16_t>(20 + 8 + bytes.size() + 4);
  const auto high = [](uint16_t value) { return static_cast<uint8_t>(value >> 8); };
  const auto low = [](uint16_t value) { return static_cast<uint8_t>(value); };
  const uint8_t ip[20] = {0x45, 0, high(total), low(total), high(id), low(id), 0x40, 0, 64, 17,
                          0,    0, 127,         0,          0,        2,       127,  0, 0,  3};
  return testing::ReferenceIcrc(ip, testing::TestPort(), testing::TestPort(), bytes);
}

struct Received {
  Flow flow;
  wire::PacketFields fields;
  Bytes payload;
};

class Collector : public PacketRx {
 public:
  void OnPacket(const Flow& flow, const wire::PacketView& packet) noexcept override {
    packets.push_back({flow, packet, Bytes(packet.payload.begin(), packet.payload.end())});
  }
  bool IsOwn(const IpAddress& address) const noexcept override { return address == own; }

  std::vector<Received> packets;
  IpAddress own;  // the daemon's, as this test has it
};

void Drain(UdpPort& port, Collector* collector) {
  UdpRxBuffers buffers;
  bool more = true;
  while (more || port.Receive(buffers, *collector, &more) > 0)
    port.Receive(buffers, *collector, &more);
}

std::vector<Bytes> SendAndCapture(const PacketList& list, bool batching) {
  const auto port = OpenOrDie(kLeft);
  PlainSocket peer(kRight);
  if (!batching) port->tx().DisableBatching();
  std::vector<Bytes> captured;
  // In parts that a small receive buffer holds.
  for (size_t at = 0; at < list.size(); at += 64) {
    const auto part = list.packets().subspan(at, std::min<size_t>(64, list.size() - at));
    EXPECT_EQ(port->Send(Flow{kLeft, kRight}, part), part.size());
    for (Bytes& bytes : peer.ReceiveAll()) captured.push_back(std::move(bytes));
  }
  return captured;
}

TEST(UdpPort, SinglesCarryTheIcrcOfIdZero) {
  const PacketList list = Mixture();
  const std::vector<Bytes> captured = SendAndCapture(list, /*batching=*/false);
  ASSERT_EQ(captured.size(), list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Bytes expected = list.Expected(i);
    ASSERT_EQ(captured[i].size(), expected.size() + 4) << i;
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), captured[i].begin())) << i;
    EXPECT_EQ(wire::LoadIcrc(std::span(captured[i]).last<4>()), ReferenceIcrcWithId(expected, 0))
        << i;
  }
}

TEST(UdpPort, BatchesDifferFromSinglesInTheIcrcOfTheirIdsOnly) {
  const PacketList list = Mixture();
  const std::vector<Bytes> captured = SendAndCapture(list, /*batching=*/true);
  const std::vector<uint16_t> ids = IdsInBatches(list);
  ASSERT_EQ(captured.size(), list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Bytes expected = list.Expected(i);
    ASSERT_EQ(captured[i].size(), expected.size() + 4) << i;
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), captured[i].begin())) << i;
    EXPECT_EQ(wire::LoadIcrc(std::span(captured[i]).last<4>()),
              ReferenceIcrcWithId(expected, ids[i]))
        << i;
  }
}

TEST(UdpPort, BatchesTakeFewSystemCalls) {
  PacketList list;
  for (int i = 0; i < 64; ++i) list.Add(wire::Opcode::kRcWriteMiddle, 4096);
  const auto port = OpenOrDie(kLeft);
  const auto peer = OpenOrDie(kRight);
  ASSERT_EQ(port->Send(Flow{kLeft, kRight}, list.packets()), 64u);
  EXPECT_EQ(port->counters().tx_syscalls.Get(), 1u);
  EXPECT_EQ(port->counters().tx_messages.Get(), 5u);  // 15 packets of 4112 bytes are 61,680
  Collector collector;
  Drain(*peer, &collector);
  EXPECT_EQ(collector.packets.size(), 64u);
  EXPECT_EQ(peer->counters().rx_messages.Get(), 5u);
}

class UdpPortFamilies : public ::testing::TestWithParam<bool> {};

TEST_P(UdpPortFamilies, WhatIsSentArrives) {
  const bool v6 = GetParam();
  const IpAddress left = v6 ? *IpAddress::Parse("::1") : kLeft;
  IpAddress right = kRight;
  if (v6) {
    if (!testing::AddIpv6Address("fd00:4791::2")) GTEST_SKIP() << "needs a network namespace";
    right = *IpAddress::Parse("fd00:4791::2");
  }
  const PacketList list = Mixture();
  const auto sender = OpenOrDie(left);
  const auto receiver = OpenOrDie(right);
  Collector collector;
  for (size_t at = 0; at < list.size(); at += 64) {
    const auto part = list.packets().subspan(at, std::min<size_t>(64, list.size() - at));
    ASSERT_EQ(sender->Send(Flow{left, right}, part), part.size());
    Drain(*receiver, &collector);
  }
  ASSERT_EQ(collector.packets.size(), list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Received& got = collector.packets[i];
    EXPECT_EQ(got.flow.local, right);
    EXPECT_EQ(got.flow.remote, left);
    EXPECT_EQ(got.fields.opcode, list.packets()[i].fields.opcode) << i;
    EXPECT_EQ(got.fields.psn, list.packets()[i].fields.psn) << i;
    EXPECT_EQ(got.payload, list.payload(i)) << i;
  }
  EXPECT_EQ(receiver->counters().rx_packets.Get(), list.size());
  EXPECT_EQ(receiver->counters().rx_drop_icrc.Get(), 0u);
}

INSTANTIATE_TEST_SUITE_P(, UdpPortFamilies, ::testing::Values(false, true),
                         [](const auto& param) { return param.param ? "Ipv6" : "Ipv4"; });

Bytes ValidPacket(const IpAddress& source, const IpAddress& destination, size_t payload_bytes) {
  PacketList list;
  list.Add(wire::Opcode::kRcSendOnly, payload_bytes);
  Bytes bytes = list.Expected(0);
  const wire::IcrcFlow flow(source, destination, testing::TestPort(), testing::TestPort());
  const uint32_t crc = flow.Compute(bytes);
  bytes.resize(bytes.size() + 4);
  wire::StoreIcrc(crc, std::span(bytes).last<4>());
  return bytes;
}

struct Garbage {
  const char* name;
  Bytes bytes;
  wire::DropReason reason;
};

std::vector<Garbage> GarbageTable() {
  const Bytes good = ValidPacket(kLeft, kRight, 8);
  const auto changed = [&good](size_t at, uint8_t value) {
    Bytes bytes = good;
    bytes[at] = value;
    return bytes;
  };
  using enum wire::DropReason;
  return {
      {"empty", {}, kTooShort},
      {"one_byte", {0}, kTooShort},
      {"no_icrc", Bytes(12, 0), kTooShort},
      {"odd_length", Bytes(good.begin(), good.end() - 1), kNotWordSized},
      {"huge", Bytes(60000, 0x55), kTooLong},
      {"version", changed(1, 0x01), kBadVersion},
      {"opcode", changed(0, 0xff), kUnknownOpcode},
      {"rd_opcode", changed(0, 0x44), kUnknownOpcode},
      {"ack_with_payload", changed(0, 0x11), kBadPayload},
  };
}

TEST(UdpPort, CountsGarbageByReasonAndDropsIt) {
  for (const Garbage& garbage : GarbageTable()) {
    SCOPED_TRACE(garbage.name);
    const auto port = OpenOrDie(kRight);
    PlainSocket peer(kLeft);
    peer.SendTo(kRight, garbage.bytes);
    peer.SendTo(kRight, ValidPacket(kLeft, kRight, 8));
    Collector collector;
    Drain(*port, &collector);
    EXPECT_EQ(port->counters().rx_drop_parse[static_cast<size_t>(garbage.reason)].Get(), 1u);
    EXPECT_EQ(collector.packets.size(), 1u);
  }
}

// A user of this host sends from an address of the daemon's own, as if it were one of its QPs. It
// cannot have the daemon's port there.
TEST(UdpPort, DropsWhatIsForgedFromAnAddressOfItsOwn) {
  const auto port = OpenOrDie(kLeft);
  PacketList list;
  list.Add(wire::Opcode::kUcSendOnly, 64);
  Bytes packet = list.Expected(0);
  packet.resize(packet.size() + wire::kIcrcBytes);  // whether the ICRC is right does not matter
  PlainSocket forger(kRight, 0);
  Collector collector;
  collector.own = kRight;
  forger.SendTo(kLeft, packet);
  Drain(*port, &collector);
  EXPECT_EQ(port->counters().rx_drop_forged.Get(), 1u);
  EXPECT_EQ(port->counters().rx_drop_icrc.Get(), 0u);
  // From a stranger's address any port will do, and from its own one the daemon's.
  collector.own = IpAddress();
  forger.SendTo(kLeft, packet);
  Drain(*port, &collector);
  EXPECT_EQ(port->counters().rx_drop_icrc.Get(), 1u);
  collector.own = kRight;
  const auto ours = OpenOrDie(kRight);
  ASSERT_EQ(ours->Send(Flow{kRight, kLeft}, list.packets()), 1u);
  Drain(*port, &collector);
  EXPECT_EQ(collector.packets.size(), 1u);
  EXPECT_EQ(port->counters().rx_drop_forged.Get(), 1u);
}

TEST(UdpPort, DropsEveryTruncation) {
  const Bytes good = ValidPacket(kLeft, kRight, 64);
  const auto port = OpenOrDie(kRight);
  PlainSocket peer(kLeft);
  Collector collector;
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    peer.SendTo(kRight, Bytes(good.begin(), good.begin() + static_cast<ptrdiff_t>(bytes)));
    Drain(*port, &collector);
  }
  EXPECT_TRUE(collector.packets.empty());
  EXPECT_EQ(port->counters().rx_messages.Get(), good.size());
}

TEST(UdpPort, DropsEverySingleBitError) {
  const Bytes good = ValidPacket(kLeft, kRight, 40);
  const auto port = OpenOrDie(kRight);
  PlainSocket peer(kLeft);
  Collector collector;
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    // BTH byte 4 holds FECN and BECN, which routers may set: the ICRC does not cover it.
    if (bit / 8 == 4) continue;
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    peer.SendTo(kRight, bad);
    Drain(*port, &collector);
    ASSERT_TRUE(collector.packets.empty()) << "bit " << bit;
  }
  EXPECT_GT(port->counters().rx_drop_icrc.Get(), 0u);
}

TEST(UdpPort, SurvivesRandomDatagrams) {
  std::mt19937 random(7);
  const auto port = OpenOrDie(kRight);
  PlainSocket peer(kLeft);
  Collector collector;
  for (int i = 0; i < 2000; ++i) {
    Bytes bytes(random() % 300);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    peer.SendTo(kRight, bytes);
    if (i % 50 == 0) Drain(*port, &collector);
  }
  Drain(*port, &collector);
  EXPECT_EQ(port->counters().rx_messages.Get(), 2000u);
  EXPECT_TRUE(collector.packets.empty());
}

TEST(UdpPort, Ipv6IcrcMustMatchExactly) {
  const IpAddress local = *IpAddress::Parse("::1");
  const auto port = OpenOrDie(local);
  // From another port of the same address, since the test's own is taken.
  const UniqueFd peer(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage name;
  const socklen_t bytes = SocketAddress{local, testing::TestPort()}.ToSockaddr(&name);
  const auto source = SocketAddress{local, static_cast<uint16_t>(testing::TestPort() + 1)};
  sockaddr_storage source_name;
  source.ToSockaddr(&source_name);
  ASSERT_EQ(::bind(peer.get(), reinterpret_cast<sockaddr*>(&source_name), bytes), 0);
  Bytes packet = ValidPacket(local, local, 32);
  const wire::IcrcFlow flow(local, local, source.port, testing::TestPort());
  const size_t end = packet.size() - 4;
  const auto send = [&](uint32_t crc) {
    wire::StoreIcrc(crc, std::span(packet).last<4>());
    ::sendto(peer.get(), packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(&name),
             bytes);
  };
  const uint32_t crc = flow.Compute(std::span(packet).first(end));
  send(crc);
  send(wire::IcrcForGsoIndex(crc, 1, packet.size()));  // would pass as another id on IPv4
  Collector collector;
  Drain(*port, &collector);
  EXPECT_EQ(collector.packets.size(), 1u);
  EXPECT_EQ(port->counters().rx_drop_icrc.Get(), 1u);
}

TEST(UdpPort, FallsBackToSinglesWhenBatchesAreRefused) {
  PacketList list;
  for (int i = 0; i < 40; ++i) list.Add(wire::Opcode::kRcWriteMiddle, 1024);
  const auto port = OpenOrDie(kLeft);
  const auto peer = OpenOrDie(kRight);
  // The kernel refuses UDP_SEGMENT without checksums: a refusal as real as a device's.
  const int on = 1;
  ASSERT_EQ(::setsockopt(port->fd(), SOL_SOCKET, SO_NO_CHECK, &on, sizeof(on)), 0);
  EXPECT_EQ(port->Send(Flow{kLeft, kRight}, list.packets()), list.size());
  EXPECT_EQ(port->counters().tx_gso_fallbacks.Get(), 1u);
  EXPECT_FALSE(port->tx().batching());
  Collector collector;
  Drain(*peer, &collector);
  ASSERT_EQ(collector.packets.size(), list.size());
  for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(collector.packets[i].payload, list.payload(i));
}

TEST(UdpPort, KeepsBatchingWhenSinglesFailToo) {
  PacketList list;
  for (int i = 0; i < 4; ++i) list.Add(wire::Opcode::kRcWriteMiddle, 1024);
  // Nothing can be sent to port 0: EINVAL, however it is sent.
  const auto opened = UdpPort::Open(kLeft, 0);
  ASSERT_TRUE(opened.ok()) << opened.status();
  UdpPort* port = opened->get();
  EXPECT_EQ(port->Send(Flow{kLeft, kRight}, list.packets()), list.size());
  EXPECT_TRUE(port->tx().batching());
  EXPECT_EQ(port->counters().tx_gso_fallbacks.Get(), 0u);
  EXPECT_EQ(port->counters().tx_lost_other.Get(), list.size());
}

TEST(UdpPort, CountsPacketsOverTheMtuAsLost) {
  if (!testing::SetMtu("lo", 1500)) GTEST_SKIP() << "needs a network namespace";
  PacketList list;
  for (int i = 0; i < 10; ++i) list.Add(wire::Opcode::kRcWriteMiddle, 4096);
  const auto port = OpenOrDie(kLeft);
  EXPECT_EQ(port->Send(Flow{kLeft, kRight}, list.packets()), list.size());
  EXPECT_EQ(port->counters().tx_lost_too_big.Get(), list.size());
  EXPECT_TRUE(port->tx().batching());
  testing::SetMtu("lo", 65536);
}

TEST(UdpPort, CountsPacketsWithoutARouteAsLost) {
  if (!testing::HavePrivateNetwork()) GTEST_SKIP() << "needs a network namespace";
  PacketList list;
  for (int i = 0; i < 3; ++i) list.Add(wire::Opcode::kRcSendOnly, 10);
  const auto port = OpenOrDie(kLeft);
  EXPECT_EQ(port->Send(Flow{kLeft, IpAddress::FromV4(192, 0, 2, 1)}, list.packets()), list.size());
  EXPECT_EQ(port->counters().tx_lost_no_route.Get(), list.size());
}

TEST(UdpPort, SaysHowManyWereTakenWhenTheSocketIsFull) {
  if (!testing::HavePrivateNetwork() ||
      !testing::Run("tc qdisc add dev lo root tbf rate 8kbit burst 100kb limit 100mb")) {
    GTEST_SKIP() << "needs a network namespace, tc and its tbf";
  }
  PacketList list;
  for (int i = 0; i < 64; ++i) list.Add(wire::Opcode::kRcWriteMiddle, 4096);
  UdpSocketOptions options;
  options.send_buffer_bytes = 256 * 1024;
  auto port = UdpPort::Open(kLeft, testing::TestPort(), options);
  ASSERT_TRUE(port.ok());
  size_t taken = 0;
  size_t last = 64;
  for (int i = 0; i < 100 && last == 64; ++i)
    taken += last = (*port)->Send(Flow{kLeft, kRight}, list.packets());
  EXPECT_LT(last, 64u);
  EXPECT_EQ((*port)->counters().tx_packets.Get(), taken);
  EXPECT_GE((*port)->counters().tx_path_full.Get(), 1u);
  testing::Run("tc qdisc del dev lo root");
}

TEST(UdpPort, SendsTrafficClassAndHopLimit) {
  const auto port = OpenOrDie(kLeft);
  PlainSocket peer(kRight);
  const int on = 1;
  ::setsockopt(peer.fd(), IPPROTO_IP, IP_RECVTOS, &on, sizeof(on));
  ::setsockopt(peer.fd(), IPPROTO_IP, IP_RECVTTL, &on, sizeof(on));
  PacketList list;
  for (int i = 0; i < 3; ++i) list.Add(wire::Opcode::kRcSendOnly, 100);
  Flow flow{kLeft, kRight};
  flow.traffic_class = 0x68;
  flow.hop_limit = 9;
  ASSERT_EQ(port->Send(flow, list.packets()), 3u);
  uint8_t data[2048];
  alignas(cmsghdr) char control[256];
  iovec piece = {data, sizeof(data)};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ASSERT_GT(::recvmsg(peer.fd(), &header, MSG_DONTWAIT), 0);
  int tos = -1, ttl = -1;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_type == IP_TOS) tos = *CMSG_DATA(c);
    if (c->cmsg_type == IP_TTL) std::memcpy(&ttl, CMSG_DATA(c), sizeof(ttl));
  }
  EXPECT_EQ(tos, 0x68);
  EXPECT_EQ(ttl, 9);
}

TEST(UdpPort, SendsTrafficClassHopLimitAndFlowLabelOverIpv6) {
  if (!testing::AddIpv6Address("fd00:4791::2")) GTEST_SKIP() << "needs a network namespace";
  const IpAddress left = *IpAddress::Parse("::1");
  const IpAddress right = *IpAddress::Parse("fd00:4791::2");
  const auto port = OpenOrDie(left);
  PlainSocket peer(right);
  const int on = 1;
  constexpr int kFlowInfo = 11;  // IPV6_FLOWINFO of linux/in6.h
  ::setsockopt(peer.fd(), IPPROTO_IPV6, IPV6_RECVTCLASS, &on, sizeof(on));
  ::setsockopt(peer.fd(), IPPROTO_IPV6, IPV6_RECVHOPLIMIT, &on, sizeof(on));
  ASSERT_EQ(::setsockopt(peer.fd(), IPPROTO_IPV6, kFlowInfo, &on, sizeof(on)), 0);
  PacketList list;
  for (int i = 0; i < 3; ++i) list.Add(wire::Opcode::kUdSendOnly, 100);
  Flow flow{left, right};
  flow.traffic_class = 0x68;
  flow.hop_limit = 9;
  flow.flow_label = 0xabcde;
  ASSERT_EQ(port->Send(flow, list.packets()), 3u);
  EXPECT_EQ(port->counters().tx_packets.Get(), 3u);
  uint8_t data[2048];
  alignas(cmsghdr) char control[256];
  iovec piece = {data, sizeof(data)};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ASSERT_GT(::recvmsg(peer.fd(), &header, MSG_DONTWAIT), 0);
  int traffic_class = -1, hops = -1;
  uint32_t flow_info = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_type == IPV6_TCLASS) std::memcpy(&traffic_class, CMSG_DATA(c), sizeof(int));
    if (c->cmsg_type == IPV6_HOPLIMIT) std::memcpy(&hops, CMSG_DATA(c), sizeof(int));
    if (c->cmsg_type == kFlowInfo) std::memcpy(&flow_info, CMSG_DATA(c), sizeof(flow_info));
  }
  EXPECT_EQ(traffic_class, 0x68);
  EXPECT_EQ(hops, 9);
  EXPECT_EQ(ntohl(flow_info) & 0xfffff, 0xabcdeu);
}

TEST(UdpPort, ReportsThePeersTrafficClassWithoutEcn) {
  const auto port = OpenOrDie(kRight);
  PlainSocket peer(kLeft);
  const int tos = 0x68 | 3;  // 3: congestion experienced
  ASSERT_EQ(::setsockopt(peer.fd(), IPPROTO_IP, IP_TOS, &tos, sizeof(tos)), 0);
  peer.SendTo(kRight, ValidPacket(kLeft, kRight, 8));
  Collector collector;
  Drain(*port, &collector);
  ASSERT_EQ(collector.packets.size(), 1u);
  EXPECT_EQ(collector.packets[0].flow.traffic_class, 0x68);
}

// Of a single packet and of a batch.
TEST(UdpPort, ReportsWhatThePeersIpHeaderSays) {
  const struct {
    IpAddress from, to;
    uint32_t flow_label;
  } kTable[] = {
      {kLeft, kRight, 0},
      {*IpAddress::Parse("::1"), *IpAddress::Parse("fd00:4791::2"), 0xabcde},
  };
  for (const auto& row : kTable) {
    SCOPED_TRACE(row.to.ToString());
    if (row.to.is_v6() && !testing::AddIpv6Address(row.to.ToString())) {
      GTEST_SKIP() << "needs a network namespace";
    }
    const auto from = OpenOrDie(row.from);
    const auto to = OpenOrDie(row.to);
    for (const int count : {1, 3}) {
      PacketList list;
      for (int i = 0; i < count; ++i) list.Add(wire::Opcode::kUdSendOnly, 100);
      Flow flow{row.from, row.to};
      flow.traffic_class = 0x68;
      flow.hop_limit = 9;
      flow.flow_label = row.flow_label;
      ASSERT_EQ(from->Send(flow, list.packets()), static_cast<size_t>(count));
      Collector collector;
      Drain(*to, &collector);
      ASSERT_EQ(collector.packets.size(), static_cast<size_t>(count));
      for (const auto& packet : collector.packets) {
        EXPECT_EQ(packet.flow.hop_limit, 9);
        EXPECT_EQ(packet.flow.flow_label, row.flow_label);
        EXPECT_EQ(packet.flow.traffic_class, 0x68);
      }
    }
  }
}

TEST(UdpPort, TakenPortIsNamedWithWhatToDo) {
  const auto first = OpenOrDie(kLeft);
  const auto second = UdpPort::Open(kLeft, testing::TestPort());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  const std::string message(second.status().message());
  EXPECT_NE(message.find("127.0.0.2"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(testing::TestPort())), std::string::npos) << message;
}

TEST(UdpPort, WildcardBindByAnotherTakesThePortToo) {
  PlainSocket other(IpAddress::AnyV4());
  EXPECT_EQ(UdpPort::Open(kLeft, testing::TestPort()).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(UdpPort, ForeignAddressIsNotFound) {
  EXPECT_EQ(UdpPort::Open(IpAddress::FromV4(192, 0, 2, 77), testing::TestPort()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(UdpPort, LinkLocalWithoutInterfaceIsNotFound) {
  EXPECT_EQ(UdpPort::Open(*IpAddress::Parse("fe80::1"), testing::TestPort()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(UdpPort, CountsWhatTheKernelDropsWhenTheReceiverSleeps) {
  UdpSocketOptions options;
  options.receive_buffer_bytes = 64 * 1024;
  auto port = UdpPort::Open(kRight, testing::TestPort(), options);
  ASSERT_TRUE(port.ok());
  const auto sender = OpenOrDie(kLeft);
  PacketList list;
  for (int i = 0; i < 64; ++i) list.Add(wire::Opcode::kRcWriteMiddle, 4096);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(sender->Send(Flow{kLeft, kRight}, list.packets()), 64u);
  EXPECT_GT(SocketDrops((*port)->fd()), 0u);
}

TEST(UdpCounters, SumsPortByPort) {
  UdpCounters counters;
  counters.rx_packets.Add(5);
  counters.rx_drop_parse[static_cast<size_t>(wire::DropReason::kBadPad)].Add(2);
  std::vector<device::CounterValue> sums;
  AppendUdpCounters(counters, &sums);
  AppendUdpCounters(counters, &sums);
  const auto value = [&sums](const std::string& name) {
    for (const auto& counter : sums) {
      if (counter.name == name) return counter.value;
    }
    return uint64_t{12345};
  };
  EXPECT_EQ(value("udp_rx_packets"), 10u);
  EXPECT_EQ(value("udp_rx_drop_bad_pad"), 4u);
  EXPECT_EQ(value("udp_tx_packets"), 0u);
}

}  // namespace
}  // namespace rdmad::soft
