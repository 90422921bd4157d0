// The server's half of gRPC over one connection, without the connection: bytes go in and calls come
// out, answers go in and bytes come out.
//
// The wire is gRPC's (HTTP/2, one message each way, grpc-status in the trailers), so that every
// gRPC client is served. HTTP/2 itself is nghttp2's. gRPC's own server is not used: that of Debian
// 12 (1.51) keeps what a peer sends without a bound (header blocks that go on for ever, pings that
// nobody takes the answers of, calls begun and reset), does not tell whose a connection is or that
// it has ended, and hands each call from thread to thread.
//
// What one connection can make the daemon keep: kMaxCalls calls under way and as many that wait,
// with headers of kMaxHeaderBytes and a request of kMaxRequestBytes each; kMostHeldBytes of
// answers, and what was under way when there were so many; and what nghttp2 bounds (HPACK's 4 KiB,
// 8 CONTINUATION frames, kMaxUnsentAcks answers to pings and settings, some 33 calls a second that
// are given up).
//
// Thread: control. Owner: RpcConnection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"

struct nghttp2_session;

namespace rdmad::control {

inline constexpr char kTokenMetadataKey[] = "rdmad-token-bin";

class GrpcProtocol {
 public:
  // What a connection may have under way; a client's further calls wait there.
  static constexpr uint32_t kMaxCalls = 16;
  static constexpr size_t kMaxRequestBytes =
      16 * 1024;                                       // the longest that means anything: some 500
  static constexpr size_t kMaxHeaderBytes = 8 * 1024;  // of one call, as HTTP/2 counts them
  static constexpr size_t kMaxUnsentAcks = 100;
  // Answers that the peer does not let go out; while there are more, no call is begun.
  static constexpr size_t kMostHeldBytes = 1 << 20;

  struct Call {
    int32_t stream = 0;   // to answer it by
    std::string method;   // "/rdmad.v1.VerbsService/CreateQp"
    std::string token;    // of kTokenMetadataKey; empty: none was sent
    std::string request;  // the message's bytes
  };

  GrpcProtocol();
  GrpcProtocol(const GrpcProtocol&) = delete;
  GrpcProtocol& operator=(const GrpcProtocol&) = delete;
  ~GrpcProtocol();

  // Takes what the peer has sent. False: it does not speak HTTP/2, or floods. Then nothing more is
  // to be received; Output() may have the reason for the peer.
  bool Receive(std::string_view bytes);

  // The next call that has become whole; none while enough are under way. One that the peer gives
  // up before it is taken is not begun.
  [[nodiscard]] std::optional<Call> TakeCall();
  [[nodiscard]] bool HasCall() const noexcept;

  // Answers a call; one that the peer has given up meanwhile is forgotten. `reply` counts only if
  // `status` is OK.
  void Respond(int32_t stream, const absl::Status& status, std::string reply);

  // Tells the peer that the connection ends.
  void Terminate();

  // The next bytes for the peer, valid until the next call of any method; empty: none for now.
  [[nodiscard]] std::string_view Output();

  // Calls taken and not yet answered, also those whose stream is gone.
  [[nodiscard]] size_t unanswered() const noexcept { return unanswered_; }

  // Neither side has anything more to say, or this one cannot (there is no memory).
  [[nodiscard]] bool over() const;

 private:
  struct Callbacks;  // nghttp2's
  struct Stream {
    std::string method;
    std::string token;
    std::string body;  // the message with its prefix
    size_t header_bytes = 0;
    bool is_grpc = false;
    bool whole = false;  // the peer has said that this was all
    bool answered = false;
    std::string reply;  // framed
    size_t reply_sent = 0;
  };
  struct SessionDeleter {
    void operator()(nghttp2_session* session) const;
  };

  Stream* Find(int32_t id);
  void TakeHeader(int32_t id, Stream& stream, std::string_view name, std::string_view value);
  void TakeBody(int32_t id, Stream& stream, std::string_view bytes);
  void TakeEnd(int32_t id, Stream& stream);
  void SendReply(int32_t id, Stream& stream, std::string reply);
  void SendError(int32_t id, Stream& stream, const absl::Status& status);
  void Forget(int32_t id);

  std::unique_ptr<nghttp2_session, SessionDeleter> session_;
  std::unordered_map<int32_t, Stream> streams_;
  std::deque<Call> calls_;  // whole, of streams that there are
  size_t unanswered_ = 0;
  size_t held_bytes_ = 0;  // of answers
  bool failed_ = false;
};

}  // namespace rdmad::control
