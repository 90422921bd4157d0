// What UD QPs post, address handles, and the way back from a GRH.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "client/sdk/queue_pair.h"
#include "client/sdk/status_errno.h"
#include "rdmad/verbs.h"
#include "tests/sdk/fake_daemon.h"

namespace rdmad::sdk {
namespace {

using testing::FakeDaemon;

class DatagramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    session_ = daemon_.Attach();
    pd_ = *PdState::Alloc(session_, 0);
    cq_ = *CompletionQueueState::Create(session_, 0, 16, nullptr, nullptr);
  }

  QueuePair MakeQp(QpType type) {
    QpInit init;
    init.type = type;
    init.send_cq = init.recv_cq = CompletionQueue(cq_);
    absl::StatusOr<QueuePair> qp = QueuePair::Create(ProtectionDomain(pd_), init);
    EXPECT_TRUE(qp.ok()) << qp.status();
    qp->state()->set_state(QpState::kRts);
    return *qp;
  }
  AddressHandle MakeAh() { return *AddressHandle::Create(ProtectionDomain(pd_), {}); }

  FakeDaemon daemon_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<PdState> pd_;
  std::shared_ptr<CompletionQueueState> cq_;
};

TEST_F(DatagramTest, HandleCarriesTheWholeAddress) {
  AddressHandleAttr attr;
  for (uint8_t i = 0; i < 16; ++i) attr.dest_gid[i] = i;
  attr.sgid_index = 3;
  attr.flow_label = 0x12345;
  attr.hop_limit = 9;
  attr.traffic_class = 0x28;
  attr.dlid = 0xc001;
  attr.service_level = 2;
  attr.src_path_bits = 1;
  attr.is_global = false;
  const AddressHandle ah = *AddressHandle::Create(ProtectionDomain(pd_), attr);
  EXPECT_TRUE(ah);
  const auto request = daemon_.LastRequest<v1::CreateAhRequest>("CreateAh");
  EXPECT_EQ(request.pd(), pd_->handle());
  EXPECT_EQ(request.attr().dest_gid(), std::string(attr.dest_gid.begin(), attr.dest_gid.end()));
  EXPECT_EQ(request.attr().sgid_index(), 3u);
  EXPECT_EQ(request.attr().flow_label(), 0x12345u);
  EXPECT_EQ(request.attr().hop_limit(), 9u);
  EXPECT_EQ(request.attr().traffic_class(), 0x28u);
  EXPECT_EQ(request.attr().dlid(), 0xc001u);
  EXPECT_EQ(request.attr().service_level(), 2u);
  EXPECT_EQ(request.attr().src_path_bits(), 1u);
  EXPECT_TRUE(request.attr().no_grh());
}

TEST_F(DatagramTest, HandleGoesWithItsLastCopyOrAtOnce) {
  AddressHandle ah = MakeAh();
  {
    const AddressHandle copy = ah;
    ah = AddressHandle();
    EXPECT_EQ(daemon_.calls("DestroyAh"), 0);
  }
  EXPECT_EQ(daemon_.calls("DestroyAh"), 1);
  ah = MakeAh();
  EXPECT_TRUE(ah.Destroy().ok());
  ah = AddressHandle();
  EXPECT_EQ(daemon_.calls("DestroyAh"), 2);
}

TEST_F(DatagramTest, SendNamesHandleQpAndKey) {
  QueuePair qp = MakeQp(QpType::kUd);
  const AddressHandle ah = MakeAh();
  std::array<std::byte, 8> bytes{};
  ASSERT_TRUE(qp.PostUdSend(5, bytes.data(), bytes.size(), nullptr, kSendSignaled, ah, 0x77).ok());
  const shm::WorkSlot slot = daemon_.LastSend(qp.handle());
  EXPECT_EQ(slot.ah_handle, ah.slot_handle());
  EXPECT_EQ(slot.remote_qpn, 0x77u);
  EXPECT_EQ(slot.remote_qkey, kUdpQkey);
  EXPECT_EQ(slot.sges[0].length_bytes, 8u);
}

TEST_F(DatagramTest, SendWithoutAddressIsRefused) {
  QueuePair qp = MakeQp(QpType::kUd);
  EXPECT_EQ(StatusToErrno(qp.PostSendv(1, {}, 0)), EINVAL);
  EXPECT_EQ(StatusToErrno(qp.PostUdSend(1, nullptr, 0, nullptr, 0, AddressHandle(), 1)), EINVAL);
  EXPECT_EQ(daemon_.PublishedSends(qp.handle()), 0u);
}

TEST_F(DatagramTest, EachTypeOfQpHasItsOperations) {
  struct Case {
    WrOpcode opcode;
    bool uc;
    bool ud;
  };
  constexpr Case kCases[] = {
      {WrOpcode::kSend, true, true},          {WrOpcode::kSendWithImm, true, true},
      {WrOpcode::kSendWithInv, false, false}, {WrOpcode::kRdmaWrite, true, false},
      {WrOpcode::kRdmaRead, false, false},    {WrOpcode::kRdmaWriteWithImm, true, false},
      {WrOpcode::kFetchAdd, false, false},    {WrOpcode::kCompareSwap, false, false},
      {WrOpcode::kLocalInv, true, false},     {WrOpcode::kBindMw, true, false},
  };
  QueuePair rc = MakeQp(QpType::kRc);
  QueuePair uc = MakeQp(QpType::kUc);
  QueuePair ud = MakeQp(QpType::kUd);
  const AddressHandle ah = MakeAh();
  const MwBind bind = {};
  for (const Case& entry : kCases) {
    SendWr wr;
    wr.opcode = entry.opcode;
    wr.ah = &ah;
    wr.bind = &bind;
    EXPECT_TRUE(rc.PostSend({&wr, 1}).ok()) << static_cast<int>(entry.opcode);
    EXPECT_EQ(uc.PostSend({&wr, 1}).ok(), entry.uc) << static_cast<int>(entry.opcode);
    EXPECT_EQ(ud.PostSend({&wr, 1}).ok(), entry.ud) << static_cast<int>(entry.opcode);
  }
  SendWr unknown;
  unknown.opcode = static_cast<WrOpcode>(10);
  EXPECT_EQ(StatusToErrno(rc.PostSend({&unknown, 1})), EINVAL);
}

TEST_F(DatagramTest, QpJoinsAndLeavesAGroupByHand) {
  QueuePair qp = MakeQp(QpType::kUd);
  std::array<uint8_t, 16> group = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3};
  ASSERT_TRUE(qp.AttachMulticast(group).ok());
  const auto request = daemon_.LastRequest<v1::AttachMulticastRequest>("AttachMulticast");
  EXPECT_EQ(request.qp(), qp.handle());
  EXPECT_EQ(request.gid(), std::string(group.begin(), group.end()));
  ASSERT_TRUE(qp.DetachMulticast(group).ok());
  EXPECT_EQ(daemon_.calls("DetachMulticast"), 1);
}

TEST_F(DatagramTest, BindPutsItsFieldsWhereTheEngineLooks) {
  QueuePair qp = MakeQp(QpType::kRc);
  MemoryWindow mw = *MemoryWindow::Alloc(ProtectionDomain(pd_));
  EXPECT_EQ(daemon_.LastRequest<v1::AllocMwRequest>("AllocMw").type(), 2u);
  std::array<std::byte, 64> memory{};
  const MemoryRegion mr(nullptr, memory.data(), memory.size(), 0x11, 0x22);
  ASSERT_TRUE(qp.PostBind(1, &mw, mr, &memory[16], 32, kAccessRemoteRead | kAccessRemoteWrite, kSendSignaled).ok());
  const shm::WorkSlot slot = daemon_.LastSend(qp.handle());
  EXPECT_EQ(slot.opcode, static_cast<uint8_t>(shm::WorkOpcode::kBindMw));
  EXPECT_EQ(slot.rkey, 0xabcdef01u);
  EXPECT_EQ(mw.rkey(), 0xabcdef01u);
  EXPECT_EQ(slot.bind_lkey, 0x11u);
  EXPECT_EQ(slot.remote_addr, reinterpret_cast<uintptr_t>(&memory[16]));
  EXPECT_EQ(slot.compare_add, 32u);
  EXPECT_EQ(slot.swap, uint64_t{kAccessRemoteRead | kAccessRemoteWrite});
  EXPECT_EQ(slot.num_sge, 0u);
}

TEST_F(DatagramTest, BindThatWasNotTakenLeavesTheKey) {
  QueuePair qp = MakeQp(QpType::kUd);
  MemoryWindow mw = *MemoryWindow::Alloc(ProtectionDomain(pd_));
  EXPECT_FALSE(qp.PostBind(1, &mw, MemoryRegion(), nullptr, 0, 0, 0).ok());
  EXPECT_EQ(mw.rkey(), 0xabcdef00u);
}

TEST_F(DatagramTest, KeysOfAWindowChangeInTheirLowByteOnly) {
  EXPECT_EQ(MemoryWindow::NextKey(0xabcdef00), 0xabcdef01u);
  EXPECT_EQ(MemoryWindow::NextKey(0xabcdefff), 0xabcdef00u);
}

TEST_F(DatagramTest, LocalInvalidateNamesTheKey) {
  QueuePair qp = MakeQp(QpType::kRc);
  ASSERT_TRUE(qp.PostLocalInv(1, 0xabcdef01, kSendFence).ok());
  const shm::WorkSlot slot = daemon_.LastSend(qp.handle());
  EXPECT_EQ(slot.opcode, static_cast<uint8_t>(shm::WorkOpcode::kLocalInv));
  EXPECT_EQ(slot.imm_be, 0xabcdef01u);
  EXPECT_EQ(slot.flags, shm::kWorkFence);
}

// ---- the way back ----

using Grh = std::array<uint8_t, kGrhBytes>;

std::span<const std::byte> Bytes(const Grh& grh) { return std::as_bytes(std::span(grh)); }

std::array<uint8_t, 16> Mapped(std::array<uint8_t, 4> address) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, address[0], address[1], address[2], address[3]};
}

DeviceInfo Device() {
  DeviceInfo device;
  device.gids.push_back({.index = 1, .raw = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, .text = ""});
  device.gids.push_back({.index = 2, .raw = Mapped({192, 0, 2, 1}), .text = ""});
  device.gids.push_back({.index = 5, .raw = Mapped({192, 0, 2, 2}), .text = ""});
  device.gids.push_back({.index = 7, .raw = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}, .text = ""});
  return device;
}

Wc WcWithGrh() {
  Wc wc{};
  wc.flags = kWcGrh;
  return wc;
}

// An IPv4 header of 20 bytes in the last 20, its checksum made right.
Grh Ipv4(std::array<uint8_t, 4> source, std::array<uint8_t, 4> destination) {
  Grh grh{};
  uint8_t* ip = &grh[20];
  const uint8_t header[12] = {0x45, 0x28, 0, 60, 0, 0, 0x40, 0, 7, 17, 0, 0};
  std::memcpy(ip, header, sizeof(header));
  std::memcpy(ip + 12, source.data(), 4);
  std::memcpy(ip + 16, destination.data(), 4);
  uint32_t sum = 0;
  for (int i = 0; i < 20; i += 2) sum += static_cast<uint32_t>(ip[i]) << 8 | ip[i + 1];
  sum = (sum & 0xffff) + (sum >> 16);
  const uint16_t checksum = static_cast<uint16_t>(~sum);
  ip[10] = static_cast<uint8_t>(checksum >> 8);
  ip[11] = static_cast<uint8_t>(checksum);
  return grh;
}

// Source: RFC 8200, section 3.
Grh Ipv6(const std::array<uint8_t, 16>& source, const std::array<uint8_t, 16>& destination) {
  Grh grh{};
  grh[0] = 0x62;
  grh[1] = 0x81;
  grh[2] = 0x23;
  grh[3] = 0x45;
  std::memcpy(&grh[8], source.data(), 16);
  std::memcpy(&grh[24], destination.data(), 16);
  return grh;
}

TEST(AddressHandleAttrFromWc, AnswersIpv4FromTheAddressThatWasAsked) {
  const absl::StatusOr<AddressHandleAttr> attr =
      AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(Ipv4({192, 0, 2, 9}, {192, 0, 2, 2})));
  ASSERT_TRUE(attr.ok()) << attr.status();
  EXPECT_EQ(attr->dest_gid, Mapped({192, 0, 2, 9}));
  EXPECT_EQ(attr->sgid_index, 5u);
  EXPECT_EQ(attr->traffic_class, 0x28u);
  EXPECT_EQ(attr->flow_label, 0u);
}

TEST(AddressHandleAttrFromWc, OnInfinibandTheSendersLidIsTheWayBack) {
  constexpr uint32_t kInfiniband = 1;
  DeviceInfo device = Device();
  device.link_layer = kInfiniband;
  Wc wc{};
  wc.slid = 0xc001;
  wc.service_level = 2;
  wc.dlid_path_bits = 1;
  absl::StatusOr<AddressHandleAttr> attr = AddressHandleAttrFromWc(device, wc, {});
  ASSERT_TRUE(attr.ok()) << attr.status();
  EXPECT_FALSE(attr->is_global);
  EXPECT_EQ(attr->dlid, 0xc001);
  EXPECT_EQ(attr->service_level, 2);
  EXPECT_EQ(attr->src_path_bits, 1);
  wc.flags = kWcGrh;
  const std::array<uint8_t, 16> peer = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
  attr = AddressHandleAttrFromWc(device, wc, Bytes(Ipv6(peer, device.gids[0].raw)));
  ASSERT_TRUE(attr.ok()) << attr.status();
  EXPECT_TRUE(attr->is_global);
  EXPECT_EQ(attr->dest_gid, peer);
  EXPECT_EQ(attr->dlid, 0xc001);
}

TEST(AddressHandleAttrFromWc, Ipv4WithoutChecksumIsKnownByItsVersion) {
  Grh grh = Ipv4({192, 0, 2, 9}, {192, 0, 2, 1});
  grh[30] = grh[31] = 0;
  EXPECT_EQ(AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(grh))->sgid_index, 2u);
}

TEST(AddressHandleAttrFromWc, AnswersIpv6WithItsFlow) {
  const std::array<uint8_t, 16> peer = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
  const absl::StatusOr<AddressHandleAttr> attr =
      AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(Ipv6(peer, Device().gids[3].raw)));
  ASSERT_TRUE(attr.ok()) << attr.status();
  EXPECT_EQ(attr->dest_gid, peer);
  EXPECT_EQ(attr->sgid_index, 7u);
  EXPECT_EQ(attr->traffic_class, 0x28u);
  EXPECT_EQ(attr->flow_label, 0x12345u);
}

TEST(AddressHandleAttrFromWc, Ipv6WhoseAddressLooksLikeIpv4StaysIpv6) {
  std::array<uint8_t, 16> peer = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0x45, 0, 0, 40};
  EXPECT_EQ(AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(Ipv6(peer, Device().gids[3].raw)))->dest_gid, peer);
}

TEST(AddressHandleAttrFromWc, MulticastIsAnsweredFromAnAddressOfTheSameKind) {
  EXPECT_EQ(AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(Ipv4({192, 0, 2, 9}, {239, 1, 2, 3})))->sgid_index,
            2u);
  const std::array<uint8_t, 16> group = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  const std::array<uint8_t, 16> peer = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
  EXPECT_EQ(AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(Ipv6(peer, group)))->sgid_index, 7u);
  const std::array<uint8_t, 16> neighbour = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
  EXPECT_EQ(AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(Ipv6(neighbour, group)))->sgid_index, 1u);
}

TEST(AddressHandleAttrFromWc, RefusesWhatSaysNoAddress) {
  const Grh good = Ipv4({192, 0, 2, 9}, {192, 0, 2, 2});
  Wc no_grh{};
  EXPECT_EQ(AddressHandleAttrFromWc(Device(), no_grh, Bytes(good)).status().code(),
            absl::StatusCode::kInvalidArgument);
  Wc failed = WcWithGrh();
  failed.status = WcStatus::kWrFlushErr;
  EXPECT_EQ(AddressHandleAttrFromWc(Device(), failed, Bytes(good)).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (size_t bytes = 0; bytes < kGrhBytes; ++bytes) {
    EXPECT_EQ(AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(good).first(bytes)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(Grh{})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AddressHandleAttrFromWc(Device(), WcWithGrh(), Bytes(Ipv4({192, 0, 2, 9}, {192, 0, 2, 3}))).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(DatagramTest, HandleFromAWcAsksForTheDevicesAddresses) {
  v1::QueryDevicesReply devices;
  v1::Device* device = devices.add_devices();
  device->set_index(0);
  v1::Gid* gid = device->add_gids();
  const std::array<uint8_t, 16> own = Mapped({192, 0, 2, 2});
  gid->set_index(4);
  gid->set_raw(std::string(own.begin(), own.end()));
  daemon_.SetDevices(devices);
  const Grh grh = Ipv4({192, 0, 2, 9}, {192, 0, 2, 2});
  ASSERT_TRUE(AddressHandle::CreateFromWc(ProtectionDomain(pd_), WcWithGrh(), Bytes(grh)).ok());
  EXPECT_EQ(daemon_.LastRequest<v1::CreateAhRequest>("CreateAh").attr().sgid_index(), 4u);
  daemon_.SetDevices({});
  EXPECT_EQ(AddressHandle::CreateFromWc(ProtectionDomain(pd_), WcWithGrh(), Bytes(grh)).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace rdmad::sdk
