// Making and destroying what a session owns: rules of use, quotas, bounds, descriptors.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <memory>
#include <string>

#include "daemon/session/session.h"
#include "tests/session/session_bed.h"

namespace rdmad::session {
namespace {

using absl::StatusCode;

v1::DestroyPoolRequest DestroyPool(Handle pool, bool force = false) {
  v1::DestroyPoolRequest request;
  request.set_pool(pool);
  request.set_force(force);
  return request;
}
v1::DestroyCqRequest DestroyCq(Handle cq) {
  v1::DestroyCqRequest request;
  request.set_cq(cq);
  return request;
}
v1::DestroyQpRequest DestroyQp(Handle qp) {
  v1::DestroyQpRequest request;
  request.set_qp(qp);
  return request;
}
v1::DeallocPdRequest DeallocPd(Handle pd) {
  v1::DeallocPdRequest request;
  request.set_pd(pd);
  return request;
}
v1::DeregisterRegionRequest Deregister(Handle region) {
  v1::DeregisterRegionRequest request;
  request.set_region(region);
  return request;
}

class SessionObjects : public ::testing::Test {
 protected:
  SessionObjects() { bed_.Open(); }
  SessionBed bed_;
};

// ---- who uses what

TEST_F(SessionObjects, CqInUseStaysAndNamesItsUser) {
  const Handle pd = bed_.MakePd();
  const Handle cq = bed_.MakeCq();
  const Handle qp = bed_.MakeQp(pd, cq);
  const auto refused = bed_.Call(&Session::DestroyCq, DestroyCq(cq));
  EXPECT_EQ(refused.status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Mentions(refused.status, HandleText(HandleKind::kQp, qp))) << refused.status;
  EXPECT_TRUE(bed_.Call(&Session::DestroyQp, DestroyQp(qp)).ok());
  EXPECT_TRUE(bed_.Call(&Session::DestroyCq, DestroyCq(cq)).ok());
}

TEST_F(SessionObjects, CqIsInUseUntilTheQpIsGone) {
  const Handle pd = bed_.MakePd();
  const Handle cq = bed_.MakeCq();
  const Handle qp = bed_.MakeQp(pd, cq);
  const auto destroying = bed_.Start(&Session::DestroyQp, DestroyQp(qp));
  EXPECT_EQ(bed_.Start(&Session::DestroyCq, DestroyCq(cq))->status.code(),
            StatusCode::kFailedPrecondition);
  bed_.Settle();
  EXPECT_TRUE(destroying->ok());
}

TEST_F(SessionObjects, PdInUseStaysAndNamesItsUsers) {
  const Handle pd = bed_.MakePd();
  const Handle pool = bed_.MakePool();
  const Handle region = bed_.MakeRegion(pd, pool);
  bed_.MakeRegion(pd, pool);
  const auto refused = bed_.Call(&Session::DeallocPd, DeallocPd(pd));
  EXPECT_EQ(refused.status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Mentions(refused.status, HandleText(HandleKind::kRegion, region) + " and 1 more"))
      << refused.status;
}

TEST_F(SessionObjects, CompletionChannelInUseStays) {
  const Handle channel = bed_.MakeChannel();
  const Handle cq = bed_.MakeCq(channel);
  v1::DestroyCompletionChannelRequest request;
  request.set_channel(channel);
  EXPECT_EQ(bed_.Call(&Session::DestroyCompletionChannel, request).status.code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(bed_.Call(&Session::DestroyCq, DestroyCq(cq)).ok());
  EXPECT_TRUE(bed_.Call(&Session::DestroyCompletionChannel, request).ok());
}

TEST_F(SessionObjects, PoolWithRegionsNeedsForce) {
  const Handle pd = bed_.MakePd();
  const Handle pool = bed_.MakePool();
  const Handle region = bed_.MakeRegion(pd, pool);
  EXPECT_EQ(bed_.Call(&Session::DestroyPool, DestroyPool(pool)).status.code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(bed_.Call(&Session::DestroyPool, DestroyPool(pool, true)).ok());
  EXPECT_EQ(bed_.Call(&Session::DeregisterRegion, Deregister(region)).status.code(),
            StatusCode::kNotFound);
  EXPECT_TRUE(bed_.Call(&Session::DeallocPd, DeallocPd(pd)).ok());
  EXPECT_EQ(bed_.session->Counts().pool_bytes(), 0u);
}

TEST_F(SessionObjects, ForcedPoolWaitsForARegionThatIsGoingAlready) {
  const Handle pd = bed_.MakePd();
  const Handle pool = bed_.MakePool();
  const Handle region = bed_.MakeRegion(pd, pool);
  const auto deregistering = bed_.Start(&Session::DeregisterRegion, Deregister(region));
  const auto destroying = bed_.Start(&Session::DestroyPool, DestroyPool(pool, true));
  EXPECT_EQ(destroying->answers, 0);
  bed_.Settle();
  EXPECT_TRUE(deregistering->ok());
  EXPECT_TRUE(destroying->ok());
}

TEST_F(SessionObjects, ForcedPoolTakesARegionThatIsBeingMade) {
  const Handle pd = bed_.MakePd();
  const Handle pool = bed_.MakePool();
  const auto making =
      bed_.Start(&Session::RegisterRegion, SessionBed::RegionRequest(pd, pool, 0, 1));
  const auto destroying = bed_.Start(&Session::DestroyPool, DestroyPool(pool, true));
  bed_.Settle();
  EXPECT_EQ(making->status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(destroying->ok());
}

TEST_F(SessionObjects, NothingCanBeMadeOfWhatIsBeingDestroyed) {
  const Handle pd = bed_.MakePd();
  const Handle cq = bed_.MakeCq();
  const auto going = bed_.Start(&Session::DeallocPd, DeallocPd(pd));
  const auto refused = bed_.Start(&Session::CreateQp, SessionBed::QpRequest(pd, cq));
  EXPECT_EQ(refused->status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(Mentions(refused->status, "being destroyed")) << refused->status;
  bed_.Settle();
  EXPECT_TRUE(going->ok());
}

TEST_F(SessionObjects, DestroyingTwiceIsAnError) {
  const Handle pd = bed_.MakePd();
  const auto first = bed_.Start(&Session::DeallocPd, DeallocPd(pd));
  const auto second = bed_.Start(&Session::DeallocPd, DeallocPd(pd));
  bed_.Settle();
  const auto third = bed_.Call(&Session::DeallocPd, DeallocPd(pd));
  EXPECT_TRUE(first->ok());
  EXPECT_EQ(second->status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(Mentions(third.status, "destroyed before")) << third.status;
}

// ---- descriptors

TEST_F(SessionObjects, PoolsDescriptorIsASealedMemfdOfItsSize) {
  v1::CreatePoolRequest request;
  request.set_size_bytes(5000);
  request.set_name("payload");
  const auto made = bed_.Call(&Session::CreatePool, request);
  ASSERT_TRUE(made.ok()) << made.status;
  EXPECT_EQ(made.reply.size_bytes(), 8192u);
  const FakeSender::Sent& sent = bed_.sender.sent.at(made.reply.descriptor_tag());
  EXPECT_EQ(sent.kind, v1::DESCRIPTOR_KIND_POOL);
  struct stat info {};
  ASSERT_EQ(fstat(sent.fd.get(), &info), 0);
  EXPECT_EQ(info.st_size, 8192);
  EXPECT_EQ(fcntl(sent.fd.get(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
            F_SEAL_SHRINK | F_SEAL_GROW);
}

TEST_F(SessionObjects, ArenasDescriptorIsSentOnce) {
  const auto first = bed_.Call(&Session::CreateCq, SessionBed::CqRequest());
  const auto second = bed_.Call(&Session::CreateCq, SessionBed::CqRequest());
  EXPECT_NE(first.reply.ring().descriptor_tag(), 0u);
  EXPECT_EQ(second.reply.ring().descriptor_tag(), 0u);
  EXPECT_EQ(second.reply.ring().arena(), first.reply.ring().arena());
  EXPECT_NE(second.reply.ring().offset_bytes(), first.reply.ring().offset_bytes());
}

TEST_F(SessionObjects, ArenaThatCouldNotBeSentIsSentWithTheNextReply) {
  bed_.sender.result = absl::ResourceExhaustedError("full");
  const auto failed = bed_.Call(&Session::CreateCq, SessionBed::CqRequest());
  EXPECT_EQ(failed.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(bed_.session->Counts().cqs(), 0u);
  bed_.sender.result = absl::OkStatus();
  EXPECT_NE(bed_.Call(&Session::CreateCq, SessionBed::CqRequest()).reply.ring().descriptor_tag(),
            0u);
}

TEST_F(SessionObjects, WhatCannotBeSentIsNotMade) {
  const Handle pd = bed_.MakePd();
  const Handle cq = bed_.MakeCq();
  bed_.sender.result = absl::ResourceExhaustedError("full");
  v1::CreatePoolRequest large;
  large.set_size_bytes(8 << 20);
  EXPECT_FALSE(bed_.Call(&Session::CreatePool, large).ok());
  EXPECT_FALSE(
      bed_.Call(&Session::CreateCompletionChannel, v1::CreateCompletionChannelRequest()).ok());
  EXPECT_FALSE(bed_.Call(&Session::CreateEventChannel, v1::CreateEventChannelRequest()).ok());
  EXPECT_TRUE(bed_.Call(&Session::CreateQp, SessionBed::QpRequest(pd, cq)).ok())
      << "its arena was sent before";
  const v1::ObjectCounts counts = bed_.session->Counts();
  EXPECT_EQ(counts.pools() + counts.completion_channels() + counts.event_channels(), 0u);
  EXPECT_EQ(counts.pool_bytes(), 0u);
}

// ---- queue pairs

TEST_F(SessionObjects, QpReplySaysWhereItsRingsAre) {
  const auto made =
      bed_.Call(&Session::CreateQp, SessionBed::QpRequest(bed_.MakePd(), bed_.MakeCq()));
  ASSERT_TRUE(made.ok()) << made.status;
  EXPECT_EQ(made.reply.cap().max_send_wr(), 8u);
  EXPECT_EQ(made.reply.send_ring().slot_count(), 8u);
  EXPECT_EQ(made.reply.recv_ring().slot_count(), 8u);
  EXPECT_NE(made.reply.send_ring().offset_bytes(), made.reply.recv_ring().offset_bytes());
  EXPECT_NE(made.reply.qpn(), 0u);
}

TEST_F(SessionObjects, DoorbellIsFreeOnlyAfterTheQpIsGone) {
  const Handle pd = bed_.MakePd();
  const Handle cq = bed_.MakeCq();
  const auto first = bed_.Call(&Session::CreateQp, SessionBed::QpRequest(pd, cq));
  const auto going = bed_.Start(&Session::DestroyQp, DestroyQp(first.reply.qp()));
  const auto second = bed_.Start(&Session::CreateQp, SessionBed::QpRequest(pd, cq));
  bed_.Settle();
  const auto third = bed_.Call(&Session::CreateQp, SessionBed::QpRequest(pd, cq));
  EXPECT_NE(second->reply.doorbell_index(), first.reply.doorbell_index());
  EXPECT_EQ(third.reply.doorbell_index(), first.reply.doorbell_index());
}

TEST_F(SessionObjects, QpCapsOverWhatARingHoldsAreRefused) {
  const Handle pd = bed_.MakePd();
  const Handle cq = bed_.MakeCq();
  const auto refused = [&](void (v1::QpCap::*set)(uint32_t), uint32_t value) {
    v1::CreateQpRequest request = SessionBed::QpRequest(pd, cq);
    (request.mutable_cap()->*set)(value);
    return bed_.Call(&Session::CreateQp, request).status.code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(&v1::QpCap::set_max_send_wr, shm::kMaxQueueDepth + 1));
  EXPECT_TRUE(refused(&v1::QpCap::set_max_recv_wr, UINT32_MAX));
  EXPECT_TRUE(refused(&v1::QpCap::set_max_send_sge, shm::kMaxSge + 1));
  EXPECT_TRUE(refused(&v1::QpCap::set_max_recv_sge, UINT32_MAX));
  EXPECT_TRUE(refused(&v1::QpCap::set_max_inline_bytes, shm::kMaxInlineBytes + 1));
  EXPECT_EQ(bed_.session->Counts().qps(), 0u);
}

TEST_F(SessionObjects, QpOfUnknownTypeIsRefused) {
  v1::CreateQpRequest request = SessionBed::QpRequest(bed_.MakePd(), bed_.MakeCq());
  request.set_qp_type(9);
  EXPECT_EQ(bed_.Call(&Session::CreateQp, request).status.code(), StatusCode::kInvalidArgument);
}

TEST_F(SessionObjects, ModifyRefusesUnknownBitsAndValuesOutOfRange) {
  const Handle qp = bed_.MakeQp(bed_.MakePd(), bed_.MakeCq());
  v1::ModifyQpRequest unknown;
  unknown.set_qp(qp);
  unknown.set_attr_mask(1u << 30);
  EXPECT_EQ(bed_.Call(&Session::ModifyQp, unknown).status.code(), StatusCode::kInvalidArgument);
  v1::ModifyQpRequest managers;
  managers.set_qp(qp);
  managers.set_attr_mask(device::kQpAttrQkey);
  managers.mutable_attr()->set_qkey(0x80010000);
  EXPECT_EQ(bed_.Call(&Session::ModifyQp, managers).status.code(), StatusCode::kInvalidArgument);
  v1::ModifyQpRequest psn;
  psn.set_qp(qp);
  psn.set_attr_mask(device::kQpAttrSqPsn);
  psn.mutable_attr()->set_sq_psn(1 << 24);
  const auto refused = bed_.Call(&Session::ModifyQp, psn);
  EXPECT_TRUE(Mentions(refused.status, "sq_psn=16777216")) << refused.status;
}

TEST_F(SessionObjects, ModifyAndQueryGoThroughTheEngine) {
  const Handle qp = bed_.MakeQp(bed_.MakePd(), bed_.MakeCq());
  v1::ModifyQpRequest modify;
  modify.set_qp(qp);
  modify.set_attr_mask(device::kQpAttrState);
  modify.mutable_attr()->set_qp_state(1);
  EXPECT_TRUE(bed_.Call(&Session::ModifyQp, modify).ok());
  v1::QueryQpRequest query;
  query.set_qp(qp);
  const auto answer = bed_.Call(&Session::QueryQp, query);
  EXPECT_EQ(answer.reply.attr().qp_state(), 1u);
  EXPECT_EQ(answer.reply.cap().max_send_wr(), 8u);
}

// ---- handles

TEST_F(SessionObjects, HandleOfAnotherKindIsTold) {
  const Handle pd = bed_.MakePd();
  const auto refused = bed_.Call(&Session::DestroyCq, DestroyCq(pd));
  EXPECT_EQ(refused.status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(Mentions(refused.status, "is of a pd")) << refused.status;
}

TEST_F(SessionObjects, UnknownDeviceIsTold) {
  v1::AllocPdRequest request;
  request.set_device_index(5);
  EXPECT_TRUE(Mentions(bed_.Call(&Session::AllocPd, request).status, "device_index=5"));
}

// ---- regions

struct Range {
  uint64_t offset;
  uint64_t length;
  uint64_t iova;
  bool good;
};

TEST_F(SessionObjects, RegionsLieWithinTheirPool) {
  const Handle pd = bed_.MakePd();
  const Handle pool = bed_.MakePool(8192);
  const Range ranges[] = {
      {0, 8192, 0x10000, true},
      {8191, 1, 0x10000, true},
      {0, 0, 0x10000, false},
      {0, 8193, 0x10000, false},
      {8192, 1, 0x10000, false},
      {1, 8192, 0x10000, false},
      {UINT64_MAX, 2, 0x10000, false},  // the sum wraps
      {1, UINT64_MAX, 0x10000, false},
      {0, 8192, UINT64_MAX - 100, false},  // the client's addresses wrap
      {0, 100, UINT64_MAX - 100, true},
  };
  for (const Range& range : ranges) {
    v1::RegisterRegionRequest request =
        SessionBed::RegionRequest(pd, pool, range.offset, range.length);
    request.set_iova(range.iova);
    EXPECT_EQ(bed_.Call(&Session::RegisterRegion, request).ok(), range.good)
        << range.offset << " " << range.length << " " << range.iova;
  }
}

TEST_F(SessionObjects, AbsurdPoolSizesAreRefused) {
  for (uint64_t bytes : {uint64_t{0}, (uint64_t{1} << 50) + 1, UINT64_MAX}) {
    v1::CreatePoolRequest request;
    request.set_size_bytes(bytes);
    EXPECT_EQ(bed_.Call(&Session::CreatePool, request).status.code(), StatusCode::kInvalidArgument)
        << bytes;
  }
}

// ---- CM ids

TEST_F(SessionObjects, EventChannelInUseStaysAndNamesItsUser) {
  const Handle channel = bed_.MakeEventChannel();
  const Handle id = bed_.MakeId(channel);
  v1::DestroyEventChannelRequest destroy;
  destroy.set_channel(channel);
  const auto refused = bed_.Call(&Session::DestroyEventChannel, destroy);
  EXPECT_EQ(refused.status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Mentions(refused.status, HandleText(HandleKind::kCmId, id))) << refused.status;
  v1::DestroyIdRequest destroy_id;
  destroy_id.set_id(id);
  EXPECT_TRUE(bed_.Call(&Session::DestroyId, destroy_id).ok());
  EXPECT_TRUE(bed_.Call(&Session::DestroyEventChannel, destroy).ok());
}

TEST_F(SessionObjects, MigratedIdUsesTheNewChannelOnly) {
  const Handle old_channel = bed_.MakeEventChannel();
  const Handle new_channel = bed_.MakeEventChannel();
  v1::MigrateIdRequest migrate;
  migrate.set_id(bed_.MakeId(old_channel));
  migrate.set_channel(new_channel);
  EXPECT_TRUE(bed_.Call(&Session::MigrateId, migrate).ok());
  v1::DestroyEventChannelRequest destroy;
  destroy.set_channel(old_channel);
  EXPECT_TRUE(bed_.Call(&Session::DestroyEventChannel, destroy).ok());
  destroy.set_channel(new_channel);
  EXPECT_EQ(bed_.Call(&Session::DestroyEventChannel, destroy).status.code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(SessionObjects, QpBelongsToOneIdAtATime) {
  const Handle channel = bed_.MakeEventChannel();
  const Handle qp = bed_.MakeQp(bed_.MakePd(), bed_.MakeCq());
  v1::SetQpRequest set;
  set.set_id(bed_.MakeId(channel));
  set.set_qp(qp);
  EXPECT_TRUE(bed_.Call(&Session::SetQp, set).ok());
  v1::SetQpRequest other = set;
  other.set_id(bed_.MakeId(channel));
  EXPECT_EQ(bed_.Call(&Session::SetQp, other).status.code(), StatusCode::kFailedPrecondition);
  set.set_qp(kNoHandle);
  EXPECT_TRUE(bed_.Call(&Session::SetQp, set).ok());
  EXPECT_TRUE(bed_.Call(&Session::SetQp, other).ok());
}

TEST_F(SessionObjects, QpThatIsMadeForAnIdIsBoundToIt) {
  const Handle pd = bed_.MakePd();
  const Handle cq = bed_.MakeCq();
  v1::CreateQpRequest create = bed_.QpRequest(pd, cq);
  create.set_cm_id(bed_.MakeId(bed_.MakeEventChannel()));
  const auto made = bed_.Call(&Session::CreateQp, create);
  ASSERT_TRUE(made.ok()) << made.status;
  v1::SetQpRequest another;
  another.set_id(create.cm_id());
  another.set_qp(bed_.MakeQp(pd, cq));
  EXPECT_EQ(bed_.Call(&Session::SetQp, another).status.code(), StatusCode::kFailedPrecondition);
  // Nothing is left of one that the id does not take, or that is for no id.
  EXPECT_EQ(bed_.Call(&Session::CreateQp, create).status.code(), StatusCode::kFailedPrecondition);
  v1::CreateQpRequest for_nobody = create;
  for_nobody.set_cm_id(77);
  EXPECT_EQ(bed_.Call(&Session::CreateQp, for_nobody).status.code(), StatusCode::kNotFound);
  for (const Handle qp : {made.reply.qp(), another.qp()}) {
    EXPECT_TRUE(bed_.Call(&Session::DestroyQp, DestroyQp(qp)).ok());
  }
  v1::DestroyCqRequest destroy_cq;
  destroy_cq.set_cq(cq);
  EXPECT_TRUE(bed_.Call(&Session::DestroyCq, destroy_cq).ok());
}

TEST_F(SessionObjects, QpThatAnIdDrivesCanBeDestroyed) {
  v1::SetQpRequest set;
  set.set_id(bed_.MakeId(bed_.MakeEventChannel()));
  set.set_qp(bed_.MakeQp(bed_.MakePd(), bed_.MakeCq()));
  EXPECT_TRUE(bed_.Call(&Session::SetQp, set).ok());
  EXPECT_TRUE(bed_.Call(&Session::DestroyQp, DestroyQp(set.qp())).ok());
  v1::DestroyIdRequest destroy_id;
  destroy_id.set_id(set.id());
  EXPECT_TRUE(bed_.Call(&Session::DestroyId, destroy_id).ok());
}

TEST_F(SessionObjects, QpDestroyedWhileTheIdMovesItCancelsTheMove) {
  v1::SetQpRequest set;
  set.set_id(bed_.MakeId(bed_.MakeEventChannel()));
  set.set_qp(bed_.MakeQp(bed_.MakePd(), bed_.MakeCq()));
  const auto moving = bed_.Start(&Session::SetQp, set);
  const auto going = bed_.Start(&Session::DestroyQp, DestroyQp(set.qp()));
  bed_.Settle();
  EXPECT_EQ(moving->answers, 1);
  EXPECT_EQ(moving->status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(going->ok());
}

TEST_F(SessionObjects, ConnectionRequestBecomesAnIdOfTheSession) {
  bed_.MakeId(bed_.MakeEventChannel());
  bed_.manager.last->SayRequest();
  EXPECT_EQ(bed_.session->Counts().cm_ids(), 2u);
}

TEST_F(SessionObjects, BadAddressesAreRefused) {
  v1::BindAddrRequest request;
  request.set_id(bed_.MakeId(bed_.MakeEventChannel()));
  request.mutable_local()->set_family(4);
  request.mutable_local()->set_addr("123");
  EXPECT_EQ(bed_.Call(&Session::BindAddr, request).status.code(), StatusCode::kInvalidArgument);
  request.mutable_local()->set_addr(std::string("\x7f\0\0\2", 4));
  request.mutable_local()->set_port(65536);
  EXPECT_EQ(bed_.Call(&Session::BindAddr, request).status.code(), StatusCode::kInvalidArgument);
  request.mutable_local()->set_port(7471);
  EXPECT_TRUE(bed_.Call(&Session::BindAddr, request).ok());
}

TEST_F(SessionObjects, AcceptingWithAManagersQkeyIsRefused) {
  v1::AcceptRequest accept;
  accept.set_id(bed_.MakeId(bed_.MakeEventChannel()));
  accept.mutable_param()->set_qkey(0x80010000);
  const absl::Status status = bed_.Call(&Session::Accept, accept).status;
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Mentions(status, "qkey=0x80010000")) << status;
}

TEST_F(SessionObjects, ConnectingWithAQpOfOthersIsRefused) {
  v1::ConnectRequest request;
  request.set_id(bed_.MakeId(bed_.MakeEventChannel()));
  request.mutable_param()->set_qpn(0x123456);
  const absl::Status connect = bed_.Call(&Session::Connect, request).status;
  EXPECT_EQ(connect.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Mentions(connect, "no such QP")) << connect;
  v1::AcceptRequest accept;
  accept.set_id(request.id());
  accept.mutable_param()->set_qpn(0x123456);
  EXPECT_EQ(bed_.Call(&Session::Accept, accept).status.code(), StatusCode::kInvalidArgument);
}

// QP numbers are a device's: another device's may be somebody else's here.
TEST_F(SessionObjects, ConnectingWithAQpOfAnotherDeviceIsRefused) {
  testing::FakeDevice other(&bed_.path);
  bed_.devices.Add(&other);
  const Handle qp = bed_.MakeQp(bed_.MakePd(), bed_.MakeCq());
  v1::ConnectRequest request;
  request.set_id(bed_.MakeId(bed_.MakeEventChannel()));
  v1::SetQpRequest bind;
  bind.set_id(request.id());
  bind.set_qp(qp);
  ASSERT_TRUE(bed_.Call(&Session::SetQp, bind).ok()) << "the id has no device yet";
  bed_.manager.last->bound = &other;
  const absl::Status bound = bed_.Call(&Session::Connect, request).status;
  EXPECT_TRUE(Mentions(bound, "different devices")) << bound;

  bind.set_qp(kNoHandle);
  ASSERT_TRUE(bed_.Call(&Session::SetQp, bind).ok());
  request.mutable_param()->set_qpn(2);  // FakeDevice's first
  const absl::Status named = bed_.Call(&Session::Connect, request).status;
  EXPECT_TRUE(Mentions(named, "no such QP on the id's device")) << named;
  bed_.manager.last->bound = &bed_.device;
  EXPECT_TRUE(bed_.Call(&Session::Connect, request).ok());
}

TEST_F(SessionObjects, PrivateDataOverTheRecordIsRefused) {
  v1::ConnectRequest request;
  request.set_id(bed_.MakeId(bed_.MakeEventChannel()));
  request.mutable_param()->set_private_data(std::string(257, 'x'));
  EXPECT_EQ(bed_.Call(&Session::Connect, request).status.code(), StatusCode::kInvalidArgument);
}

// ---- quotas

TEST(SessionQuota, EachLimitIsKeptAndNamed) {
  SessionLimits limits;
  limits.max_qps = limits.max_cqs = limits.max_pds = limits.max_regions = limits.max_pools = 1;
  limits.max_cm_ids = limits.max_channels = 1;
  SessionBed bed(limits);
  bed.Open();
  const Handle pd = bed.MakePd();
  const Handle pool = bed.MakePool();
  bed.MakeRegion(pd, pool);
  const Handle cq = bed.MakeCq();
  bed.MakeQp(pd, cq);
  const Handle channel = bed.MakeEventChannel();
  bed.MakeId(channel);

  v1::CreatePoolRequest pool_request;
  pool_request.set_size_bytes(1);
  v1::CreateIdRequest id_request;
  id_request.set_channel(channel);
  id_request.set_port_space(0x0106);
  const std::pair<const char*, absl::Status> refused[] = {
      {"max_pds", bed.Call(&Session::AllocPd, v1::AllocPdRequest()).status},
      {"max_pools", bed.Call(&Session::CreatePool, pool_request).status},
      {"max_regions",
       bed.Call(&Session::RegisterRegion, SessionBed::RegionRequest(pd, pool, 0, 1)).status},
      {"max_cqs", bed.Call(&Session::CreateCq, SessionBed::CqRequest()).status},
      {"max_qps", bed.Call(&Session::CreateQp, SessionBed::QpRequest(pd, cq)).status},
      {"max_cm_ids", bed.Call(&Session::CreateId, id_request).status},
      {"max_channels",
       bed.Call(&Session::CreateEventChannel, v1::CreateEventChannelRequest()).status},
      {"max_channels",
       bed.Call(&Session::CreateCompletionChannel, v1::CreateCompletionChannelRequest()).status},
  };
  for (const auto& [limit, status] : refused) {
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << limit;
    EXPECT_TRUE(Mentions(status, std::string("limit=") + limit + " value=1 in_use=1")) << status;
  }
  EXPECT_EQ(bed.session->quota_refusals(), 8u);
}

TEST(SessionQuota, ConnectionRequestOverTheLimitIsRejected) {
  SessionLimits limits;
  limits.max_cm_ids = 1;
  SessionBed bed(limits);
  bed.Open();
  bed.MakeId(bed.MakeEventChannel());
  bed.manager.last->SayRequest();
  EXPECT_EQ(bed.session->Counts().cm_ids(), 1u);
  EXPECT_EQ(bed.manager.endpoints, 1);
}

TEST(SessionQuota, RequestsThatNobodyAnswersAreBounded) {
  SessionLimits limits;
  limits.max_pending_requests = 2;
  SessionBed bed(limits);
  bed.Open();
  for (int i = 0; i < 3; ++i) {
    bed.MakeId(bed.MakeEventChannel());  // a listener each
    bed.manager.last->SayRequest();
  }
  EXPECT_EQ(bed.session->Counts().cm_ids(), 3u + 2u);
  EXPECT_EQ(bed.manager.endpoints, 3 + 2);
}

TEST(SessionQuota, PoolBytesComeBack) {
  SessionLimits limits;
  limits.max_pool_bytes = 8192;
  SessionBed bed(limits);
  bed.Open();
  const Handle pool = bed.MakePool(8192);
  v1::CreatePoolRequest request;
  request.set_size_bytes(1);
  EXPECT_EQ(bed.Call(&Session::CreatePool, request).status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(bed.Call(&Session::DestroyPool, DestroyPool(pool)).ok());
  EXPECT_TRUE(bed.Call(&Session::CreatePool, request).ok());
}

TEST(SessionQuota, BytesCountForEachRegionThatCoversThem) {
  SessionLimits limits;
  limits.max_region_bytes = 8192;
  SessionBed bed(limits);
  bed.Open();
  const Handle pd = bed.MakePd();
  const Handle pool = bed.MakePool(8192);
  bed.MakeRegion(pd, pool);
  const Handle second = bed.MakeRegion(pd, pool);
  const auto request = SessionBed::RegionRequest(pd, pool, 0, 1);
  const absl::Status refused = bed.Call(&Session::RegisterRegion, request).status;
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Mentions(refused, "limit=max_region_bytes value=8192 in_use=8192 asked=1")) << refused;
  v1::DeregisterRegionRequest deregister;
  deregister.set_region(second);
  EXPECT_TRUE(bed.Call(&Session::DeregisterRegion, deregister).ok());
  EXPECT_TRUE(bed.Call(&Session::RegisterRegion, request).ok());
}

TEST(SessionQuota, ArenaBytesAreBounded) {
  SessionLimits limits;
  limits.max_arena_bytes = 1 << 20;
  SessionBed bed(limits);
  bed.Open();
  const auto refused = bed.Call(&Session::CreateCq, SessionBed::CqRequest(1 << 20));  // 64 MiB
  EXPECT_EQ(refused.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(bed.session->Counts().cqs(), 0u);
}

}  // namespace
}  // namespace rdmad::session
