#include "daemon/control/grpc_protocol.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace rdmad::control {
namespace {

// Before each message: whether it is compressed, and its length, big-endian.
constexpr size_t kPrefixBytes = 5;
// What HTTP/2 adds to a field's length to account for its keeping (RFC 9113, 6.5.2).
constexpr size_t kFieldOverhead = 32;

std::string Framed(std::string_view message) {
  const auto length = static_cast<uint32_t>(message.size());
  std::string bytes = {0, static_cast<char>(length >> 24), static_cast<char>(length >> 16),
                       static_cast<char>(length >> 8), static_cast<char>(length)};
  bytes.append(message);
  return bytes;
}

uint32_t MessageLength(const std::string& prefixed) {
  uint32_t length = 0;
  for (size_t i = 1; i < kPrefixBytes; ++i)
    length = length << 8 | static_cast<unsigned char>(prefixed[i]);
  return length;
}

// grpc-message is percent-encoded.
std::string Encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      out += c;
    } else {
      absl::StrAppend(&out, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return out;
}

// nghttp2 copies names and values.
nghttp2_nv Field(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view text) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

std::string_view View(const uint8_t* bytes, size_t length) {
  return {reinterpret_cast<const char*>(bytes), length};
}

}  // namespace

// Of nghttp2's calls back, `user` is the protocol.
struct GrpcProtocol::Callbacks {
  static GrpcProtocol& Self(void* user) { return *static_cast<GrpcProtocol*>(user); }

  static int OnBeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    if (frame->headers.cat == NGHTTP2_HCAT_REQUEST)
      Self(user).streams_.try_emplace(frame->hd.stream_id);
    return 0;
  }

  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_bytes, const uint8_t* value, size_t value_bytes, uint8_t,
                      void* user) {
    const int32_t id = frame->hd.stream_id;
    if (Stream* stream = Self(user).Find(id)) {
      Self(user).TakeHeader(id, *stream, View(name, name_bytes), View(value, value_bytes));
      // Not every nghttp2 bounds a block of headers that goes on and on.
      if (stream->header_bytes > 16 * kMaxHeaderBytes) return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    return 0;
  }

  static int OnData(nghttp2_session*, uint8_t, int32_t id, const uint8_t* data, size_t bytes,
                    void* user) {
    if (Stream* stream = Self(user).Find(id)) Self(user).TakeBody(id, *stream, View(data, bytes));
    return 0;
  }

  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    const bool ends = (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
                      (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (!ends) return 0;
    if (Stream* stream = Self(user).Find(frame->hd.stream_id))
      Self(user).TakeEnd(frame->hd.stream_id, *stream);
    return 0;
  }

  // What the peer has still to send of a call that was refused before its end is of no use.
  static int OnFrameSent(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
    if (frame->hd.type != NGHTTP2_HEADERS || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
      return 0;
    const Stream* stream = Self(user).Find(frame->hd.stream_id);
    if (stream != nullptr && !stream->whole) {
      nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
    }
    return 0;
  }

  static int OnStreamClosed(nghttp2_session*, int32_t id, uint32_t, void* user) {
    Self(user).Forget(id);
    return 0;
  }

  static ssize_t ReadReply(nghttp2_session* session, int32_t id, uint8_t* buffer, size_t room,
                           uint32_t* flags, nghttp2_data_source*, void* user) {
    Stream* stream = Self(user).Find(id);
    if (stream == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    const size_t bytes = std::min(room, stream->reply.size() - stream->reply_sent);
    std::memcpy(buffer, stream->reply.data() + stream->reply_sent, bytes);
    stream->reply_sent += bytes;
    Self(user).held_bytes_ -= bytes;
    if (stream->reply_sent == stream->reply.size()) {
      *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
      const nghttp2_nv status = Field("grpc-status", "0");
      if (nghttp2_submit_trailer(session, id, &status, 1) != 0)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    return static_cast<ssize_t>(bytes);
  }
};

void GrpcProtocol::SessionDeleter::operator()(nghttp2_session* session) const {
  nghttp2_session_del(session);
}

GrpcProtocol::GrpcProtocol() {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_option* options = nullptr;
  nghttp2_session* session = nullptr;
  RD_CHECK(nghttp2_session_callbacks_new(&callbacks) == 0 && nghttp2_option_new(&options) == 0,
           "there is memory for a connection");
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, Callbacks::OnBeginHeaders);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, Callbacks::OnHeader);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Callbacks::OnData);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Callbacks::OnFrame);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, Callbacks::OnFrameSent);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Callbacks::OnStreamClosed);
  nghttp2_option_set_no_closed_streams(options, 1);
  nghttp2_option_set_max_outbound_ack(options, kMaxUnsentAcks);
  nghttp2_option_set_peer_max_concurrent_streams(options, 0);  // we begin none
  const int made = nghttp2_session_server_new2(&session, callbacks, this, options);
  nghttp2_option_del(options);
  nghttp2_session_callbacks_del(callbacks);
  RD_CHECK(made == 0, "there is memory for a connection");
  session_.reset(session);
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, kMaxCalls},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMaxHeaderBytes},
  };
  nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, std::size(settings));
}

GrpcProtocol::~GrpcProtocol() = default;

bool GrpcProtocol::Receive(std::string_view bytes) {
  const ssize_t taken = nghttp2_session_mem_recv(
      session_.get(), reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  return taken == static_cast<ssize_t>(bytes.size());
}

bool GrpcProtocol::HasCall() const noexcept {
  return !calls_.empty() && unanswered_ < kMaxCalls && held_bytes_ < kMostHeldBytes;
}

std::optional<GrpcProtocol::Call> GrpcProtocol::TakeCall() {
  if (!HasCall()) return std::nullopt;
  Call call = std::move(calls_.front());
  calls_.pop_front();
  ++unanswered_;
  return call;
}

void GrpcProtocol::Respond(int32_t id, const absl::Status& status, std::string reply) {
  RD_CHECK(unanswered_ > 0, "a call is answered once");
  --unanswered_;
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  if (status.ok()) {
    SendReply(id, *stream, std::move(reply));
  } else {
    SendError(id, *stream, status);
  }
}

void GrpcProtocol::Terminate() {
  nghttp2_session_terminate_session(session_.get(), NGHTTP2_NO_ERROR);
}

std::string_view GrpcProtocol::Output() {
  const uint8_t* bytes = nullptr;
  const ssize_t count = nghttp2_session_mem_send(session_.get(), &bytes);
  if (count < 0) failed_ = true;
  return count > 0 ? View(bytes, static_cast<size_t>(count)) : std::string_view();
}

bool GrpcProtocol::over() const {
  return failed_ || (nghttp2_session_want_read(session_.get()) == 0 &&
                     nghttp2_session_want_write(session_.get()) == 0);
}

GrpcProtocol::Stream* GrpcProtocol::Find(int32_t id) {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : &found->second;
}

void GrpcProtocol::Forget(int32_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  held_bytes_ -= found->second.reply.size() - found->second.reply_sent;
  streams_.erase(found);
  std::erase_if(calls_, [id](const Call& call) { return call.stream == id; });
}

void GrpcProtocol::TakeHeader(int32_t id, Stream& stream, std::string_view name,
                              std::string_view value) {
  stream.header_bytes += name.size() + value.size() + kFieldOverhead;
  if (stream.answered) return;
  if (stream.header_bytes > kMaxHeaderBytes) {
    return SendError(id, stream,
                     absl::ResourceExhaustedError(absl::StrCat(
                         "the call's metadata is too long: limit=", kMaxHeaderBytes, " bytes")));
  }
  if (name == ":path") {
    stream.method = value;
  } else if (name == "content-type") {
    stream.is_grpc = value.substr(0, 16) == "application/grpc";
  } else if (name == kTokenMetadataKey) {
    // Text that is no base64 is no session's token either.
    if (!absl::Base64Unescape({value.data(), value.size()}, &stream.token)) stream.token.clear();
  }
}

void GrpcProtocol::TakeBody(int32_t id, Stream& stream, std::string_view bytes) {
  if (stream.answered) return;
  const size_t longest = kPrefixBytes + kMaxRequestBytes;
  stream.body.append(bytes.substr(0, longest + 1 - stream.body.size()));
  if (stream.body.size() < kPrefixBytes) return;
  if (stream.body[0] != 0)
    return SendError(id, stream, absl::UnimplementedError("rdmad takes no compressed messages"));
  if (const uint32_t length = MessageLength(stream.body); length > kMaxRequestBytes) {
    SendError(id, stream,
              absl::ResourceExhaustedError(
                  absl::StrCat("the request has ", length, " bytes: limit=", kMaxRequestBytes)));
  }
}

void GrpcProtocol::TakeEnd(int32_t id, Stream& stream) {
  stream.whole = true;
  if (stream.answered) return;
  if (!stream.is_grpc) {
    stream.answered = true;
    const nghttp2_nv status = Field(":status", "415");
    failed_ |= nghttp2_submit_response(session_.get(), id, &status, 1, nullptr) != 0;
    return;
  }
  if (stream.body.size() < kPrefixBytes ||
      stream.body.size() != kPrefixBytes + MessageLength(stream.body)) {
    return SendError(id, stream,
                     absl::InvalidArgumentError("a call has one request, and this has no whole one "
                                                "or something after it"));
  }
  calls_.push_back({id, std::move(stream.method), std::move(stream.token),
                    std::exchange(stream.body, {}).substr(kPrefixBytes)});
}

void GrpcProtocol::SendReply(int32_t id, Stream& stream, std::string reply) {
  stream.answered = true;
  stream.reply = Framed(reply);
  held_bytes_ += stream.reply.size();
  const nghttp2_nv fields[] = {Field(":status", "200"), Field("content-type", "application/grpc")};
  nghttp2_data_provider provider{};
  provider.read_callback = Callbacks::ReadReply;
  failed_ |= nghttp2_submit_response(session_.get(), id, fields, std::size(fields), &provider) != 0;
}

void GrpcProtocol::SendError(int32_t id, Stream& stream, const absl::Status& status) {
  stream.answered = true;
  stream.body = {};
  // The codes are the same numbers.
  const std::string code = absl::StrCat(static_cast<int>(status.code()));
  const std::string message =
      Encoded({status.message().data(), std::min<size_t>(status.message().size(), 1024)});
  const nghttp2_nv fields[] = {Field(":status", "200"), Field("content-type", "application/grpc"),
                               Field("grpc-status", code), Field("grpc-message", message)};
  failed_ |= nghttp2_submit_response(session_.get(), id, fields, std::size(fields), nullptr) != 0;
}

}  // namespace rdmad::control
