#include "tests/integration/hoard.h"

#include <array>
#include <string>
#include <utility>

#include "daemon/base/status_macros.h"
#include "tests/integration/cm_pair.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kQkey = 0x4791;
constexpr size_t kSlotBytes = 4096;
constexpr uint64_t kReceives = 4;
constexpr uint32_t kRemoteRights = kAccessRemoteRead | kAccessRemoteWrite;
// 239.47.91.7, as GID.
constexpr std::array<uint8_t, 16> kGroup = {0, 0, 0,    0,    0,   0,  0,  0,
                                            0, 0, 0xff, 0xff, 239, 47, 91, 7};

absl::Status Bind(Hoard& hoard) {
  const Buffer& memory = hoard.near.memory;
  RD_ASSIGN_OR_RETURN(hoard.bindable,
                      hoard.near.pd.Reg(memory.data(), memory.size(),
                                        kAccessLocalWrite | kRemoteRights | kAccessMwBind));
  RD_ASSIGN_OR_RETURN(hoard.window, MemoryWindow::Alloc(hoard.near.pd));
  RD_RETURN_IF_ERROR(hoard.near.qp.PostBind(1, &hoard.window, hoard.bindable, memory.data(),
                                            memory.size(), kRemoteRights, kSendSignaled));
  RD_ASSIGN_OR_RETURN(const Wc wc, WaitForWc(hoard.near.cq));
  return wc.status == WcStatus::kSuccess ? absl::OkStatus()
                                         : absl::InternalError(WcStatusString(wc.status));
}

absl::StatusOr<std::unique_ptr<CmId>> Join(const Client& client, const Address& local) {
  absl::StatusOr<std::unique_ptr<CmId>> id = CmId::Create(client, nullptr, PortSpace::kUdp);
  if (!id.ok()) return id.status();
  RD_RETURN_IF_ERROR((*id)->BindAddr(local));
  QpInit init;
  init.type = QpType::kUd;
  RD_RETURN_IF_ERROR((*id)->CreateQp(nullptr, init));
  RD_ASSIGN_OR_RETURN(const Address group, Address::Parse("239.47.91.8"));
  RD_RETURN_IF_ERROR((*id)->JoinMulticast(group));
  return id;
}

}  // namespace

absl::StatusOr<Hoard> MakeHoard(const Client& client, Address address) {
  address.port = 0;
  const std::string text = address.ToString();
  RD_ASSIGN_OR_RETURN(WiredEnd near, MakeEnd(client, text));
  WiredOptions options;
  options.pd = &near.pd;
  RD_ASSIGN_OR_RETURN(WiredEnd far, MakeEnd(client, text, options));
  RD_RETURN_IF_ERROR(Wire(near, far));

  RD_ASSIGN_OR_RETURN(SharedReceiveQueue srq,
                      SharedReceiveQueue::Create(near.pd, {.max_wr = 16, .max_sge = 1}));
  for (uint64_t i = 0; i < kReceives; ++i) {
    RD_RETURN_IF_ERROR(
        srq.PostRecv(i, near.memory.data() + i * kSlotBytes, kSlotBytes, &near.region));
  }
  options.type = QpType::kUd;
  options.srq = &srq;
  RD_ASSIGN_OR_RETURN(WiredEnd datagrams, MakeEnd(client, text, options));
  RD_RETURN_IF_ERROR(MakeReady(datagrams, kQkey));
  RD_RETURN_IF_ERROR(datagrams.qp.AttachMulticast(kGroup));
  RD_ASSIGN_OR_RETURN(AddressHandle way, AddressHandle::Create(near.pd, WayTo(near, datagrams)));

  Hoard hoard{
      std::move(near), std::move(far), std::move(srq), std::move(datagrams), std::move(way), {}, {},
      nullptr};
  RD_RETURN_IF_ERROR(Bind(hoard));
  RD_ASSIGN_OR_RETURN(hoard.member, Join(client, address));
  return hoard;
}

}  // namespace rdmad::testing
