// gRPC's server side without a socket: whole calls, refused ones, and what floods come to.
#include "daemon/control/grpc_protocol.h"

#include <gtest/gtest.h>
#include <nghttp2/nghttp2.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/control/http2.h"

namespace rdmad::control {
namespace {

using namespace testing::http2;  // NOLINT: the vocabulary of this test

constexpr char kMethod[] = "/rdmad.v1.SessionService/GetSession";

// What the peer sees of one stream.
struct Answer {
  std::map<std::string, std::string> fields;  // of headers and trailers
  std::string data;
  bool ended = false;
  bool reset = false;
};

class GrpcProtocolTest : public ::testing::Test {
 protected:
  GrpcProtocolTest() { SetUpAnew(); }

  // Another connection.
  void SetUpAnew() {
    protocol_ = std::make_unique<GrpcProtocol>();
    nghttp2_hd_inflater* inflater = nullptr;
    nghttp2_hd_inflate_new(&inflater);
    inflater_.reset(inflater);
    answers_.clear();
    goaway_ = false;
  }

  // Reads all that is to be sent.
  void Take() {
    std::string bytes;
    for (std::string_view more = protocol_->Output(); !more.empty(); more = protocol_->Output())
      bytes.append(more);
    const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
    for (size_t i = 0; i + 9 <= bytes.size();) {
      const size_t length = size_t{at(i)} << 16 | size_t{at(i + 1)} << 8 | at(i + 2);
      const uint32_t stream = uint32_t{at(i + 5)} << 24 | uint32_t{at(i + 6)} << 16 |
                              uint32_t{at(i + 7)} << 8 | at(i + 8);
      TakeFrame(at(i + 3), at(i + 4), stream, bytes.substr(i + 9, length));
      i += 9 + length;
    }
  }

  void TakeFrame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
    if (type == kGoaway) goaway_ = true;
    if (stream == 0) return;
    Answer& answer = answers_[stream];
    if (type == kHeaders) Inflate(payload, &answer.fields);
    if (type == kData) answer.data += payload;
    if (type == kRstStream) answer.reset = true;
    if ((type == kHeaders || type == kData) && (flags & kEndStream) != 0) answer.ended = true;
  }

  void Inflate(const std::string& block, std::map<std::string, std::string>* fields) {
    const auto* in = reinterpret_cast<const uint8_t*>(block.data());
    size_t left = block.size();
    for (int flags = 0; (flags & NGHTTP2_HD_INFLATE_FINAL) == 0;) {
      nghttp2_nv field{};
      const ssize_t used = nghttp2_hd_inflate_hd2(inflater_.get(), &field, &flags, in, left, 1);
      ASSERT_GE(used, 0);
      in += used;
      left -= static_cast<size_t>(used);
      if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
        (*fields)[std::string(reinterpret_cast<char*>(field.name), field.namelen)] =
            std::string(reinterpret_cast<char*>(field.value), field.valuelen);
      }
    }
    nghttp2_hd_inflate_end_headers(inflater_.get());
  }

  std::vector<GrpcProtocol::Call> TakeCalls() {
    std::vector<GrpcProtocol::Call> calls;
    while (std::optional<GrpcProtocol::Call> call = protocol_->TakeCall())
      calls.push_back(*std::move(call));
    return calls;
  }

  // The bytes of a whole call.
  static std::string Call(uint32_t stream, const std::string& body,
                          const std::string& fields = CallFields(kMethod)) {
    return Frame(kHeaders, kEndHeaders, stream, fields) + Frame(kData, kEndStream, stream, body);
  }

  struct InflaterDeleter {
    void operator()(nghttp2_hd_inflater* inflater) const { nghttp2_hd_inflate_del(inflater); }
  };
  std::unique_ptr<GrpcProtocol> protocol_;
  std::unique_ptr<nghttp2_hd_inflater, InflaterDeleter> inflater_;
  std::map<uint32_t, Answer> answers_;
  bool goaway_ = false;
};

TEST_F(GrpcProtocolTest, CallComesOutWholeHoweverItsBytesArrive) {
  const std::string bytes =
      Hello() + Call(1, Message("request"), CallFields(kMethod) + Field(kTokenMetadataKey, "YWJj"));
  std::vector<GrpcProtocol::Call> calls;
  for (const char byte : bytes) {
    EXPECT_TRUE(calls.empty());
    ASSERT_TRUE(protocol_->Receive({&byte, 1}));
    calls = TakeCalls();
  }
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].stream, 1);
  EXPECT_EQ(calls[0].method, kMethod);
  EXPECT_EQ(calls[0].token, "abc");
  EXPECT_EQ(calls[0].request, "request");
  EXPECT_EQ(protocol_->unanswered(), 1u);
}

TEST_F(GrpcProtocolTest, AnswerIsTheMessageAndThenItsStatus) {
  ASSERT_TRUE(protocol_->Receive(Hello() + Call(1, Message(""))));
  ASSERT_EQ(TakeCalls().size(), 1u);
  const std::string reply(50'000, 'r');  // several frames
  protocol_->Respond(1, absl::OkStatus(), reply);
  Take();
  EXPECT_EQ(answers_[1].fields[":status"], "200");
  EXPECT_EQ(answers_[1].fields["content-type"], "application/grpc");
  EXPECT_EQ(answers_[1].fields["grpc-status"], "0");
  EXPECT_EQ(answers_[1].data, Message(reply));
  EXPECT_TRUE(answers_[1].ended);
  EXPECT_FALSE(answers_[1].reset);
  EXPECT_EQ(protocol_->unanswered(), 0u);
}

TEST_F(GrpcProtocolTest, ErrorIsItsStatusWithTheMessageEncoded) {
  ASSERT_TRUE(protocol_->Receive(Hello() + Call(1, Message(""))));
  ASSERT_EQ(TakeCalls().size(), 1u);
  protocol_->Respond(1, absl::NotFoundError("100 %\nno ä"), "not sent");
  Take();
  EXPECT_EQ(answers_[1].fields["grpc-status"], "5");
  EXPECT_EQ(answers_[1].fields["grpc-message"], "100 %25%0ano %c3%a4");
  EXPECT_EQ(answers_[1].data, "");
  EXPECT_TRUE(answers_[1].ended);
}

TEST_F(GrpcProtocolTest, ConnectionHasManyCallsOneAfterTheOther) {
  ASSERT_TRUE(protocol_->Receive(Hello()));
  for (uint32_t stream = 1; stream < 4000; stream += 2) {
    ASSERT_TRUE(protocol_->Receive(Call(stream, Message("x"))));
    ASSERT_EQ(TakeCalls().size(), 1u);
    protocol_->Respond(static_cast<int32_t>(stream), absl::OkStatus(), "y");
    Take();
    ASSERT_EQ(answers_[stream].data, Message("y"));
  }
}

TEST_F(GrpcProtocolTest, CallThatWasGivenUpIsNotAnswered) {
  ASSERT_TRUE(protocol_->Receive(Hello() + Call(1, Message(""))));
  ASSERT_EQ(TakeCalls().size(), 1u);
  ASSERT_TRUE(protocol_->Receive(Frame(kRstStream, 0, 1, std::string("\0\0\0\x08", 4))));
  EXPECT_EQ(protocol_->unanswered(), 1u) << "it is carried out all the same";
  protocol_->Respond(1, absl::OkStatus(), "late");
  Take();
  EXPECT_EQ(protocol_->unanswered(), 0u);
  EXPECT_FALSE(answers_.count(1));
}

TEST_F(GrpcProtocolTest, CallThatIsGivenUpBeforeItIsTakenIsNotBegun) {
  ASSERT_TRUE(protocol_->Receive(Hello() + Call(1, Message("")) + Call(3, Message("")) +
                                 Frame(kRstStream, 0, 1, std::string("\0\0\0\x08", 4))));
  const std::vector<GrpcProtocol::Call> calls = TakeCalls();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].stream, 3);
}

// Calls that were given up go on here, so their streams' number does not bound them.
TEST_F(GrpcProtocolTest, NoMoreCallsAreUnderWayThanTheLimit) {
  ASSERT_TRUE(protocol_->Receive(Hello()));
  size_t taken = 0;
  for (uint32_t stream = 1; stream < 100; stream += 2) {
    ASSERT_TRUE(protocol_->Receive(Call(stream, Message(""))));
    taken += TakeCalls().size();
    ASSERT_TRUE(protocol_->Receive(Frame(kRstStream, 0, stream, std::string("\0\0\0\x08", 4))));
  }
  EXPECT_EQ(taken, GrpcProtocol::kMaxCalls);
  protocol_->Respond(1, absl::OkStatus(), "");
  ASSERT_TRUE(protocol_->Receive(Call(101, Message(""))));
  EXPECT_EQ(TakeCalls().size(), 1u);
}

TEST_F(GrpcProtocolTest, NoCallIsBegunWhileManyAnswersAreHeldBack) {
  ASSERT_TRUE(protocol_->Receive(Hello() + Call(1, Message(""))));
  ASSERT_EQ(TakeCalls().size(), 1u);
  protocol_->Respond(1, absl::OkStatus(), std::string(2 * GrpcProtocol::kMostHeldBytes, 'r'));
  Take();  // what its window lets go
  ASSERT_TRUE(protocol_->Receive(Call(3, Message(""))));
  EXPECT_TRUE(TakeCalls().empty());
  const std::string more("\0\x40\0\0", 4);  // 4 MiB, to the connection and to the stream
  ASSERT_TRUE(
      protocol_->Receive(Frame(kWindowUpdate, 0, 0, more) + Frame(kWindowUpdate, 0, 1, more)));
  Take();
  EXPECT_TRUE(answers_[1].ended);
  EXPECT_EQ(TakeCalls().size(), 1u);
}

TEST_F(GrpcProtocolTest, AnswersOfCallsThatAreGivenUpAreNotKept) {
  ASSERT_TRUE(protocol_->Receive(Hello() + Call(1, Message("")) + Call(3, Message(""))));
  ASSERT_EQ(TakeCalls().size(), 2u);
  protocol_->Respond(1, absl::OkStatus(), std::string(GrpcProtocol::kMostHeldBytes, 'r'));
  ASSERT_TRUE(protocol_->Receive(Frame(kRstStream, 0, 1, std::string("\0\0\0\x08", 4)) +
                                 Call(5, Message(""))));
  EXPECT_EQ(TakeCalls().size(), 1u);
}

TEST_F(GrpcProtocolTest, WhatIsNoCallIsAnsweredAndNotHandedOn) {
  struct Case {
    const char* what;
    std::string bytes;
    const char* field;
    const char* value;
  };
  const std::string fields = CallFields(kMethod);
  const std::vector<Case> cases = {
      {"no message", Frame(kHeaders, kEndHeaders | kEndStream, 1, fields), "grpc-status", "3"},
      {"half a prefix", Call(1, "\0\0"), "grpc-status", "3"},
      {"half a message", Call(1, Message("half").substr(0, 7)), "grpc-status", "3"},
      {"two messages", Call(1, Message("a") + Message("b")), "grpc-status", "3"},
      {"compressed", Call(1, Message("a", 1)), "grpc-status", "12"},
      {"too long",
       Call(1, Message(std::string(GrpcProtocol::kMaxRequestBytes + 1, 'x')).substr(0, 99)),
       "grpc-status", "8"},
      {"not gRPC",
       Frame(kHeaders, kEndHeaders | kEndStream, 1,
             Field(":method", "GET") + Field(":scheme", "http") + Field(":path", "/") +
                 Field(":authority", "x")),
       ":status", "415"},
  };
  for (const Case& one : cases) {
    SetUpAnew();
    ASSERT_TRUE(protocol_->Receive(Hello() + one.bytes)) << one.what;
    EXPECT_TRUE(TakeCalls().empty()) << one.what;
    Take();
    EXPECT_EQ(answers_[1].fields[one.field], one.value) << one.what;
    EXPECT_TRUE(answers_[1].ended) << one.what;
  }
}

TEST_F(GrpcProtocolTest, RequestThatIsTooLongIsRefusedBeforeItsEnd) {
  const std::string start = Message(std::string(GrpcProtocol::kMaxRequestBytes + 1, 'x'));
  ASSERT_TRUE(protocol_->Receive(Hello() + Frame(kHeaders, kEndHeaders, 1, CallFields(kMethod)) +
                                 Frame(kData, 0, 1, start.substr(0, 5))));
  Take();
  EXPECT_EQ(answers_[1].fields["grpc-status"], "8");
  EXPECT_TRUE(answers_[1].ended);
  EXPECT_TRUE(answers_[1].reset) << "the rest of it is not wanted";
}

TEST_F(GrpcProtocolTest, LongestRequestIsTaken) {
  const std::string request(GrpcProtocol::kMaxRequestBytes, 'x');
  ASSERT_TRUE(protocol_->Receive(Hello() + Frame(kHeaders, kEndHeaders, 1, CallFields(kMethod)) +
                                 Frame(kData, 0, 1, Message(request).substr(0, 9000)) +
                                 Frame(kData, kEndStream, 1, Message(request).substr(9000))));
  const std::vector<GrpcProtocol::Call> calls = TakeCalls();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].request, request);
}

TEST_F(GrpcProtocolTest, CallWithTooManyHeadersCostsOnlyItself) {
  std::string fields = CallFields(kMethod);
  for (int i = 0; i < 10; ++i) fields += Field("x-pad", std::string(1000, 'p'));
  ASSERT_TRUE(protocol_->Receive(Hello() + Call(1, Message(""), fields) + Call(3, Message(""))));
  const std::vector<GrpcProtocol::Call> calls = TakeCalls();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].stream, 3);
  Take();
  EXPECT_EQ(answers_[1].fields["grpc-status"], "8");
  EXPECT_NE(answers_[1].fields["grpc-message"].find("metadata"), std::string::npos);
}

TEST_F(GrpcProtocolTest, TokenThatIsNoBase64IsNone) {
  ASSERT_TRUE(protocol_->Receive(
      Hello() + Call(1, Message(""), CallFields(kMethod) + Field(kTokenMetadataKey, "!?,=")) +
      Call(3, Message(""), CallFields(kMethod) + Field(kTokenMetadataKey, "YQ"))));
  const std::vector<GrpcProtocol::Call> calls = TakeCalls();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].token, "");
  EXPECT_EQ(calls[1].token, "a") << "gRPC's clients leave the padding off";
}

TEST_F(GrpcProtocolTest, CallsBeyondALimitThatThePeerDoesNotKnowYetAreRefused) {
  ASSERT_TRUE(protocol_->Receive(Hello()));
  for (uint32_t i = 0; i < GrpcProtocol::kMaxCalls + 4; ++i)
    ASSERT_TRUE(protocol_->Receive(Frame(kHeaders, kEndHeaders, 2 * i + 1, CallFields(kMethod))));
  Take();
  EXPECT_EQ(answers_.size(), 4u);
  for (const auto& [stream, answer] : answers_) EXPECT_TRUE(answer.reset) << stream;
  EXPECT_FALSE(goaway_);
}

TEST_F(GrpcProtocolTest, CallsBeyondALimitThatThePeerKnowsEndTheConnection) {
  ASSERT_TRUE(protocol_->Receive(Hello()));
  Take();
  ASSERT_TRUE(protocol_->Receive(Frame(kSettings, 1, 0, "")));  // "I have seen them"
  for (uint32_t i = 0; i < GrpcProtocol::kMaxCalls; ++i)
    ASSERT_TRUE(protocol_->Receive(Frame(kHeaders, kEndHeaders, 2 * i + 1, CallFields(kMethod))));
  Take();
  EXPECT_FALSE(goaway_);
  protocol_->Receive(Frame(kHeaders, kEndHeaders, 999, CallFields(kMethod)));
  Take();
  EXPECT_TRUE(goaway_);
}

// ---- floods: each ends the connection while little is kept

TEST_F(GrpcProtocolTest, HeadersThatNeverEndEndTheConnection) {
  ASSERT_TRUE(protocol_->Receive(Hello() + Frame(kHeaders, 0, 1, CallFields(kMethod))));
  const std::string more = Frame(kContinuation, 0, 1, Field("x", std::string(8000, 'y')));
  int sent = 0;
  while (sent < 1000 && protocol_->Receive(more)) ++sent;
  EXPECT_LT(sent, 20);
}

TEST_F(GrpcProtocolTest, PingsWhoseAnswersNobodyTakesEndTheConnection) {
  ASSERT_TRUE(protocol_->Receive(Hello()));
  const std::string ping = Frame(kPing, 0, 0, std::string(8, 'p'));
  size_t sent = 0;
  while (sent < 100'000 && protocol_->Receive(ping)) ++sent;
  EXPECT_LE(sent, 2 * GrpcProtocol::kMaxUnsentAcks);
}

TEST_F(GrpcProtocolTest, CallsThatAreBegunAndResetEndTheConnection) {
  ASSERT_TRUE(protocol_->Receive(Hello()));
  uint32_t sent = 0;
  while (sent < 100'000 && !goaway_ &&
         protocol_->Receive(Frame(kHeaders, kEndHeaders, 2 * sent + 1, CallFields(kMethod)) +
                            Frame(kRstStream, 0, 2 * sent + 1, std::string("\0\0\0\x08", 4)))) {
    ++sent;
    Take();
  }
  EXPECT_LT(sent, 5000u);
}

TEST_F(GrpcProtocolTest, WhatIsNoHttp2EndsTheConnection) {
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\xff'),
        Hello() + std::string(5000, '\xff')}) {
    SetUpAnew();
    const bool good = protocol_->Receive(garbage);
    Take();
    EXPECT_TRUE(!good || goaway_ || protocol_->over());
  }
}

}  // namespace
}  // namespace rdmad::control
