// QPs in multicast groups: by hand, and by the CM id that drives the QP.
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

#include "daemon/session/session.h"
#include "proto/shm/event.h"
#include "tests/session/session_bed.h"

namespace rdmad::session {
namespace {

using absl::StatusCode;

class SessionMulticast : public ::testing::Test {
 protected:
  SessionMulticast() {
    bed_.Open();
    pd_ = bed_.MakePd();
    cq_ = bed_.MakeCq();
    qp_ = bed_.MakeUdQp(pd_, cq_);
  }

  absl::Status Attach(uint8_t group = 1) {
    return bed_.Call(&Session::AttachMulticast, SessionBed::AttachRequest(qp_, group)).status;
  }
  absl::Status Detach(uint8_t group = 1) {
    return bed_.Call(&Session::DetachMulticast, SessionBed::DetachRequest(qp_, group)).status;
  }
  absl::Status DestroyQp() {
    v1::DestroyQpRequest request;
    request.set_qp(qp_);
    return bed_.Call(&Session::DestroyQp, request).status;
  }

  // ---- with an id of the UDP port space
  void MakeId(bool with_qp = true) {
    const auto channel =
        bed_.Call(&Session::CreateEventChannel, v1::CreateEventChannelRequest()).reply;
    events_ = bed_.sender.sent.at(channel.descriptor_tag()).fd.get();
    fcntl(events_, F_SETFL, O_NONBLOCK);
    v1::CreateIdRequest request;
    request.set_channel(channel.channel());
    request.set_port_space(0x0111);
    id_ = bed_.Call(&Session::CreateId, request).reply.id();
    endpoint_ = bed_.manager.last;
    if (with_qp) {
      EXPECT_TRUE(SetQp(qp_).ok());
    }
  }
  absl::Status SetQp(Handle qp) {
    v1::SetQpRequest request;
    request.set_id(id_);
    request.set_qp(qp);
    return bed_.Call(&Session::SetQp, request).status;
  }
  static void ToGroup(uint8_t group, v1::SocketAddress* address) {
    address->set_family(4);
    address->set_addr(std::string{'\xef', '\0', '\0', static_cast<char>(group)});
  }
  absl::Status Join(uint8_t group = 1, uint64_t cookie = 0xc00c1e) {
    v1::JoinMulticastRequest request;
    request.set_id(id_);
    request.set_cookie(cookie);
    ToGroup(group, request.mutable_group());
    return bed_.Call(&Session::JoinMulticast, request).status;
  }
  absl::Status Leave(uint8_t group = 1) {
    v1::LeaveMulticastRequest request;
    request.set_id(id_);
    ToGroup(group, request.mutable_group());
    return bed_.Call(&Session::LeaveMulticast, request).status;
  }
  std::vector<shm::CmEvent> ReadEvents() {
    std::vector<shm::CmEvent> events;
    shm::CmEvent event{};
    while (read(events_, &event, sizeof(event)) == static_cast<ssize_t>(sizeof(event))) {
      events.push_back(event);
    }
    return events;
  }
  size_t Attached(uint8_t group = 1) const {
    return bed_.device.groups.count(SessionBed::Group(group));
  }

  SessionBed bed_;
  Handle pd_, cq_, qp_;
  Handle id_ = kNoHandle;
  FakeEndpoint* endpoint_ = nullptr;
  int events_ = -1;
};

// ---- by hand

TEST_F(SessionMulticast, AttachesAndDetaches) {
  EXPECT_TRUE(Attach().ok());
  EXPECT_EQ(Attached(), 1u);
  EXPECT_EQ(bed_.session->Counts().multicasts(), 1u);
  EXPECT_TRUE(Detach().ok());
  EXPECT_EQ(Attached(), 0u);
  EXPECT_EQ(bed_.session->Counts().multicasts(), 0u);
}

TEST_F(SessionMulticast, AttachedTwiceIsAttachedOnce) {
  EXPECT_TRUE(Attach().ok());
  EXPECT_TRUE(Attach().ok());
  EXPECT_EQ(Attached(), 1u);
  EXPECT_TRUE(Detach().ok());
  EXPECT_EQ(Attached(), 0u);
  EXPECT_EQ(Detach().code(), StatusCode::kInvalidArgument);
}

TEST_F(SessionMulticast, TwoAttachesAtOnceAreBothAnswered) {
  const auto one = bed_.Start(&Session::AttachMulticast, SessionBed::AttachRequest(qp_));
  const auto other = bed_.Start(&Session::AttachMulticast, SessionBed::AttachRequest(qp_));
  EXPECT_EQ(other->answers, 0);
  bed_.Settle();
  EXPECT_TRUE(one->ok());
  EXPECT_TRUE(other->ok());
}

TEST_F(SessionMulticast, AttachAfterDetachWaitsUntilTheDeviceLetGo) {
  ASSERT_TRUE(Attach().ok());
  const auto detaching = bed_.Start(&Session::DetachMulticast, SessionBed::DetachRequest(qp_));
  const auto attaching = bed_.Start(&Session::AttachMulticast, SessionBed::AttachRequest(qp_));
  EXPECT_EQ(Attached(), 1u);
  bed_.Settle();
  EXPECT_TRUE(detaching->ok());
  EXPECT_TRUE(attaching->ok());
  EXPECT_EQ(Attached(), 1u);
}

TEST_F(SessionMulticast, DetachCutsAnAttachShort) {
  const auto attaching = bed_.Start(&Session::AttachMulticast, SessionBed::AttachRequest(qp_));
  const auto detaching = bed_.Start(&Session::DetachMulticast, SessionBed::DetachRequest(qp_));
  bed_.Settle();
  EXPECT_EQ(attaching->status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(detaching->ok());
  EXPECT_EQ(Attached(), 0u);
}

TEST_F(SessionMulticast, QpThatIsAttachedByHandStays) {
  ASSERT_TRUE(Attach().ok());
  const absl::Status refused = DestroyQp();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(refused.message()).find("multicast attachment"), std::string::npos);
  ASSERT_TRUE(Detach().ok());
  EXPECT_TRUE(DestroyQp().ok());
}

TEST_F(SessionMulticast, OnlyUdQpsAndOnlyGroups) {
  const Handle rc = bed_.MakeQp(pd_, cq_);
  EXPECT_EQ(bed_.Call(&Session::AttachMulticast, SessionBed::AttachRequest(rc)).status.code(),
            StatusCode::kInvalidArgument);
  for (const std::string& gid : {std::string(), std::string(15, '\xff'), std::string(17, '\xff'),
                                 std::string(16, '\0'), SessionBed::HostGid(1)}) {
    v1::AttachMulticastRequest attach;
    attach.set_qp(qp_);
    attach.set_gid(gid);
    EXPECT_EQ(bed_.Call(&Session::AttachMulticast, attach).status.code(),
              StatusCode::kInvalidArgument);
    v1::DetachMulticastRequest detach;
    detach.set_qp(qp_);
    detach.set_gid(gid);
    EXPECT_EQ(bed_.Call(&Session::DetachMulticast, detach).status.code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(bed_.Call(&Session::AttachMulticast, SessionBed::AttachRequest(cq_)).status.code(),
            StatusCode::kNotFound);
}

TEST_F(SessionMulticast, DevicesRefusalIsHandedOn) {
  bed_.device.refusal = absl::UnimplementedError("no multicast");
  EXPECT_EQ(Attach().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(bed_.session->Counts().multicasts(), 0u);
  EXPECT_TRUE(DestroyQp().ok());
}

// ---- by an id

TEST_F(SessionMulticast, UdQpOfAnIdIsReadyAtOnce) {
  MakeId();
  EXPECT_EQ(bed_.device.last_qp->modified_to,
            (std::vector<device::QpState>{device::QpState::kInit, device::QpState::kRtr,
                                          device::QpState::kRts}));
}

TEST_F(SessionMulticast, JoiningAttachesTheQpAndThenTells) {
  MakeId();
  ASSERT_TRUE(Join().ok());
  endpoint_->SayJoined(SessionBed::Group(1));
  EXPECT_TRUE(ReadEvents().empty()) << "not before the QP is attached";
  bed_.Settle();
  EXPECT_EQ(Attached(), 1u);
  const std::vector<shm::CmEvent> events = ReadEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].type, 12u);
  EXPECT_EQ(events[0].status, 0);
  EXPECT_EQ(events[0].multicast_cookie, 0xc00c1eu);
  EXPECT_EQ(events[0].qpn, 0xffffffu);
  EXPECT_EQ(events[0].qkey, 0x01234567u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(events[0].ah_dest_gid), 16),
            SessionBed::GroupGid(1));
}

TEST_F(SessionMulticast, IdWithoutAQpIsToldAlone) {
  MakeId(false);
  ASSERT_TRUE(Join().ok());
  endpoint_->SayJoined(SessionBed::Group(1));
  EXPECT_EQ(ReadEvents().size(), 1u);
  EXPECT_EQ(Attached(), 0u);
  EXPECT_TRUE(Leave().ok());
}

TEST_F(SessionMulticast, LeavingDetaches) {
  MakeId();
  ASSERT_TRUE(Join().ok());
  endpoint_->SayJoined(SessionBed::Group(1));
  bed_.Settle();
  EXPECT_TRUE(Leave().ok());
  EXPECT_EQ(Attached(), 0u);
  EXPECT_EQ(Leave().code(), StatusCode::kNotFound);
}

TEST_F(SessionMulticast, LeavingBeforeTheQpIsAttachedTellsNothing) {
  MakeId();
  ASSERT_TRUE(Join().ok());
  endpoint_->SayJoined(SessionBed::Group(1));
  EXPECT_TRUE(Leave().ok());  // settles
  EXPECT_EQ(Attached(), 0u);
  EXPECT_TRUE(ReadEvents().empty());
}

TEST_F(SessionMulticast, SecondJoinOfAGroupIsRefused) {
  MakeId();
  ASSERT_TRUE(Join(1, 5).ok());
  EXPECT_EQ(Join(1, 6).code(), StatusCode::kAlreadyExists);
  endpoint_->SayJoined(SessionBed::Group(1));
  bed_.Settle();
  EXPECT_EQ(Join(1, 7).code(), StatusCode::kAlreadyExists);
  const std::vector<shm::CmEvent> events = ReadEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].multicast_cookie, 5u);
}

TEST_F(SessionMulticast, RefusedAttachIsAnErrorAndTheIdIsNotInTheGroup) {
  MakeId();
  ASSERT_TRUE(Join().ok());
  bed_.device.refusal = absl::ResourceExhaustedError("no more groups");
  endpoint_->SayJoined(SessionBed::Group(1));
  const std::vector<shm::CmEvent> events = ReadEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].type, 13u);
  EXPECT_EQ(events[0].status, -ENOMEM);
  EXPECT_EQ(events[0].multicast_cookie, 0xc00c1eu);
  EXPECT_TRUE(endpoint_->joined.empty());
  bed_.device.refusal = absl::OkStatus();
  EXPECT_TRUE(Join().ok()) << "it may try again";
}

TEST_F(SessionMulticast, FailedJoinCarriesTheCookie) {
  MakeId();
  ASSERT_TRUE(Join(1, 42).ok());
  endpoint_->SayJoined(SessionBed::Group(1), -ENETUNREACH);
  const std::vector<shm::CmEvent> events = ReadEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].type, 13u);
  EXPECT_EQ(events[0].status, -ENETUNREACH);
  EXPECT_EQ(events[0].multicast_cookie, 42u);
}

TEST_F(SessionMulticast, EndOfTheQpDetachesAndTheIdStaysInTheGroup) {
  MakeId();
  ASSERT_TRUE(Join().ok());
  endpoint_->SayJoined(SessionBed::Group(1));
  bed_.Settle();
  EXPECT_TRUE(DestroyQp().ok());
  EXPECT_EQ(Attached(), 0u);
  EXPECT_TRUE(Leave().ok());
}

TEST_F(SessionMulticast, TakingTheQpAwayDetachesIt) {
  MakeId();
  ASSERT_TRUE(Join().ok());
  endpoint_->SayJoined(SessionBed::Group(1));
  bed_.Settle();
  EXPECT_TRUE(SetQp(kNoHandle).ok());
  EXPECT_EQ(Attached(), 0u);
}

TEST_F(SessionMulticast, EndOfTheIdDetaches) {
  MakeId();
  ASSERT_TRUE(Join(1).ok());
  ASSERT_TRUE(Join(2).ok());
  endpoint_->SayJoined(SessionBed::Group(1));
  bed_.Settle();
  endpoint_->SayJoined(SessionBed::Group(2));  // being attached
  v1::DestroyIdRequest request;
  request.set_id(id_);
  EXPECT_TRUE(bed_.Call(&Session::DestroyId, request).ok());
  EXPECT_EQ(Attached(1) + Attached(2), 0u);
  EXPECT_TRUE(DestroyQp().ok());
}

// Each call comes before the engine has answered the one before.
TEST_F(SessionMulticast, LeavingRejoiningAndLeavingAtOnceLeavesNothingAttached) {
  for (const bool id_goes : {false, true}) {
    MakeId();
    ASSERT_TRUE(Join().ok());
    endpoint_->SayJoined(SessionBed::Group(1));
    bed_.Settle();
    ASSERT_EQ(Attached(), 1u);
    ASSERT_EQ(ReadEvents().size(), 1u);
    v1::LeaveMulticastRequest leave;
    leave.set_id(id_);
    ToGroup(1, leave.mutable_group());
    v1::JoinMulticastRequest join;
    join.set_id(id_);
    ToGroup(1, join.mutable_group());
    const auto leaving = bed_.Start(&Session::LeaveMulticast, leave);
    const auto joining = bed_.Start(&Session::JoinMulticast, join);
    endpoint_->SayJoined(SessionBed::Group(1));
    if (id_goes) {
      v1::DestroyIdRequest request;
      request.set_id(id_);
      const auto destroying = bed_.Start(&Session::DestroyId, request);
      bed_.Settle();
    } else {
      const auto leaving_again = bed_.Start(&Session::LeaveMulticast, leave);
      bed_.Settle();
      EXPECT_TRUE(leaving_again->ok());
    }
    EXPECT_TRUE(leaving->ok());
    EXPECT_TRUE(joining->ok());
    EXPECT_EQ(Attached(), 0u) << id_goes;
    if (!id_goes) {
      EXPECT_TRUE(SetQp(kNoHandle).ok());
    }
    EXPECT_TRUE(ReadEvents().empty()) << "it had left again";
  }
}

TEST_F(SessionMulticast, LeavingAndRejoiningTwiceAtOnceLeavesItAttachedOnce) {
  MakeId();
  ASSERT_TRUE(Join().ok());
  endpoint_->SayJoined(SessionBed::Group(1));
  bed_.Settle();
  ReadEvents();
  v1::LeaveMulticastRequest leave;
  leave.set_id(id_);
  ToGroup(1, leave.mutable_group());
  v1::JoinMulticastRequest join;
  join.set_id(id_);
  ToGroup(1, join.mutable_group());
  for (int i = 0; i < 2; ++i) {
    bed_.Start(&Session::LeaveMulticast, leave);
    join.set_cookie(static_cast<uint64_t>(i));
    bed_.Start(&Session::JoinMulticast, join);
    endpoint_->SayJoined(SessionBed::Group(1));
  }
  bed_.Settle();
  EXPECT_EQ(Attached(), 1u);
  const std::vector<shm::CmEvent> events = ReadEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].multicast_cookie, 1u);
  EXPECT_TRUE(Leave().ok());
  EXPECT_EQ(Attached(), 0u);
}

TEST_F(SessionMulticast, WhatIsAttachedByHandTooStays) {
  MakeId();
  ASSERT_TRUE(Attach().ok());
  ASSERT_TRUE(Join().ok());
  endpoint_->SayJoined(SessionBed::Group(1));
  bed_.Settle();
  EXPECT_EQ(ReadEvents().size(), 1u);
  EXPECT_TRUE(Leave().ok());
  EXPECT_EQ(Attached(), 1u);
  EXPECT_TRUE(Detach().ok());
  EXPECT_EQ(Attached(), 0u);
}

TEST_F(SessionMulticast, MalformedJoinsAreRefused) {
  MakeId();
  v1::JoinMulticastRequest request;
  request.set_id(id_);
  EXPECT_EQ(bed_.Call(&Session::JoinMulticast, request).status.code(),
            StatusCode::kInvalidArgument);
  request.mutable_group()->set_family(4);
  request.mutable_group()->set_addr(std::string("\x0a\0\0\1", 4));
  EXPECT_EQ(bed_.Call(&Session::JoinMulticast, request).status.code(),
            StatusCode::kInvalidArgument);
  ToGroup(1, request.mutable_group());
  request.set_join_flags(2);
  EXPECT_EQ(bed_.Call(&Session::JoinMulticast, request).status.code(),
            StatusCode::kInvalidArgument);
  request.set_join_flags(1);
  EXPECT_TRUE(bed_.Call(&Session::JoinMulticast, request).ok());
}

}  // namespace
}  // namespace rdmad::session
