#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/examples/filecopy/copy.h"
#include "client/examples/filecopy/progress.h"
#include "client/examples/filecopy/sha256.h"

namespace filecopy {
namespace {

absl::Status FileError(const std::string& file, const char* what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(file, ": ", what));
}

class Sender {
 public:
  Sender(rdmad::Client client, const SendOptions& options) : client_(std::move(client)), options_(options) {}
  ~Sender() {
    if (fd_ >= 0) ::close(fd_);
  }

  absl::StatusOr<Outcome> Run() {
    if (absl::Status status = OpenFile(); !status.ok()) return status;
    if (absl::Status status = Connect(); !status.ok()) return status;
    if (absl::Status status = Offer(); !status.ok()) return Explain(status);
    const auto start = std::chrono::steady_clock::now();
    if (absl::Status status = SendChunks(); !status.ok()) return Explain(status);
    const Hash hash = sha256_.Finish();
    if (absl::Status status = Finish(hash); !status.ok()) return Explain(status);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    endpoint_->Close().IgnoreError();
    return Outcome{options_.file, file_bytes_, seconds, options_.mode, ToHex(hash)};
  }

 private:
  absl::Status OpenFile() {
    fd_ = ::open(options_.file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) return FileError(options_.file, "open");
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return FileError(options_.file, "stat");
    if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(options_.file + ": not a regular file");
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
    file_bytes_ = static_cast<uint64_t>(info.st_size);
    return absl::OkStatus();
  }

  absl::Status Connect() {
    rdmad::EndpointOptions options;
    options.send_depth = options_.slot_count + 4;
    options.recv_depth = options_.slot_count + 4;
    options.max_recv_bytes = kMaxMessageBytes;
    absl::StatusOr<rdmad::Endpoint> endpoint = rdmad::Endpoint::Connect(client_, options_.peer, options);
    if (!endpoint.ok()) return endpoint.status();
    endpoint_ = std::move(endpoint).value();
    // Twice as many buffers as operations can be under way: whichever is next in turn is free.
    const size_t buffer_count = 2 * size_t{options_.slot_count} + 4;
    absl::StatusOr<rdmad::Pool> pool =
        rdmad::Pool::Create(client_, buffer_count * options_.chunk_bytes + (1 << 20), {.name = "filecopy"});
    if (!pool.ok()) return pool.status();
    pool_ = std::move(pool).value();
    if (options_.mode == Mode::kSend) return absl::OkStatus();  // each send gives its buffer away
    for (size_t i = 0; i < buffer_count; ++i) {
      absl::StatusOr<rdmad::Buffer> buffer = pool_->Allocate(options_.chunk_bytes);
      if (!buffer.ok()) return buffer.status();
      buffers_.push_back(std::move(buffer).value());
    }
    return absl::OkStatus();
  }

  absl::Status Offer() {
    Message offer;
    offer.type = MessageType::kOffer;
    offer.mode = options_.mode;
    offer.chunk_bytes = options_.chunk_bytes;
    offer.slot_count = options_.slot_count;
    offer.file_bytes = file_bytes_;
    offer.text = options_.file.substr(options_.file.rfind('/') + 1);
    if (options_.mode == Mode::kRead) {
      if (absl::Status status = ShareSlots(&offer.slots); !status.ok()) return status;
    }
    if (absl::Status status = SendMessage(*endpoint_, *pool_, offer); !status.ok()) return status;
    absl::StatusOr<Message> ready = ReceiveMessage(*endpoint_);
    if (!ready.ok()) return ready.status();
    if (ready->type == MessageType::kResult) return PeerError(*ready);
    if (ready->type != MessageType::kReady) return absl::InternalError("the receiver did not say that it is ready");
    credits_ = ready->slot_count;
    slots_ = ready->slots;
    return absl::OkStatus();
  }

  // Mode read: one region over all slots, which lie one behind the other.
  absl::Status ShareSlots(rdmad::RemoteBuffer* slots) {
    buffers_.clear();
    absl::StatusOr<rdmad::Buffer> all = pool_->Allocate(size_t{options_.slot_count} * options_.chunk_bytes);
    if (!all.ok()) return all.status();
    read_slots_ = std::move(all).value();
    absl::StatusOr<rdmad::MemoryRegion> region = endpoint_->Share(read_slots_, rdmad::kAccessRemoteRead);
    if (!region.ok()) return region.status();
    region_ = std::move(region).value();
    *slots = rdmad::Endpoint::Describe(region_);
    return absl::OkStatus();
  }

  static absl::Status PeerError(const Message& result) {
    return absl::AbortedError("the receiver gave up: " + result.text);
  }

  // A receiver that gives up says why and closes. Which of the two is noticed first depends on what was being done; the
  // reason lies among the messages that have come.
  absl::Status Explain(const absl::Status& status) {
    while (true) {
      const absl::StatusOr<std::optional<rdmad::Buffer>> buffer = endpoint_->TryReceive();
      if (!buffer.ok() || !buffer->has_value()) return status;
      const absl::StatusOr<Message> message = Decode((*buffer)->text());
      if (message.ok() && message->type == MessageType::kResult && !message->ok) return PeerError(*message);
    }
  }

  // The receiver speaks while chunks flow: of credit, or of its end.
  absl::Status OnMessage(const Message& message) {
    if (message.type == MessageType::kResult) return PeerError(message);
    if (message.type != MessageType::kCredit) return absl::InternalError("an unexpected message from the receiver");
    credits_ += message.count;
    return absl::OkStatus();
  }

  absl::Status WaitForCredit() {
    while (credits_ == 0) {
      absl::StatusOr<Message> message = ReceiveMessage(*endpoint_);
      if (!message.ok()) return message.status();
      if (absl::Status status = OnMessage(*message); !status.ok()) return status;
    }
    --credits_;
    return absl::OkStatus();
  }

  absl::Status Fill(std::byte* data, uint64_t offset, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t count = ::pread(fd_, data + done, bytes - done, static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return FileError(options_.file, "read");
      if (count == 0) return absl::DataLossError(options_.file + ": became shorter while it was sent");
      done += static_cast<size_t>(count);
    }
    sha256_.Update({data, bytes});
    return absl::OkStatus();
  }

  absl::Status SendChunks() {
    Progress progress("send", file_bytes_, options_.quiet);
    uint64_t number = 0;
    for (uint64_t offset = 0; offset < file_bytes_; ++number) {
      if (absl::Status status = WaitForCredit(); !status.ok()) return status;
      const size_t bytes = static_cast<size_t>(std::min<uint64_t>(options_.chunk_bytes, file_bytes_ - offset));
      if (absl::Status status = SendChunk(number, offset, bytes); !status.ok()) return status;
      offset += bytes;
      progress.Show(offset);
    }
    return absl::OkStatus();
  }

  absl::Status SendChunk(uint64_t number, uint64_t offset, size_t bytes) {
    const uint64_t slot_offset = number % options_.slot_count * options_.chunk_bytes;
    switch (options_.mode) {
      case Mode::kSend: {
        absl::StatusOr<rdmad::Buffer> buffer = pool_->Allocate(bytes);
        if (!buffer.ok()) return buffer.status();
        if (absl::Status status = Fill(buffer->data(), offset, bytes); !status.ok()) return status;
        return endpoint_->Send(std::move(buffer).value(), static_cast<uint32_t>(number));
      }
      case Mode::kWrite: {
        rdmad::Buffer& buffer = buffers_[number % buffers_.size()];
        if (absl::Status status = Fill(buffer.data(), offset, bytes); !status.ok()) return status;
        buffer.resize(bytes);
        return endpoint_->StartWrite(buffer, slots_, slot_offset, static_cast<uint32_t>(number)).status();
      }
      case Mode::kRead: {
        if (absl::Status status = Fill(read_slots_.data() + slot_offset, offset, bytes); !status.ok()) return status;
        Message filled;
        filled.type = MessageType::kFilled;
        return SendMessage(*endpoint_, *pool_, filled);
      }
    }
    return absl::InternalError("no such mode");
  }

  absl::Status Finish(const Hash& hash) {
    Message done;
    done.type = MessageType::kDone;
    done.hash = hash;
    if (absl::Status status = SendMessage(*endpoint_, *pool_, done); !status.ok()) return status;
    while (true) {
      absl::StatusOr<Message> result = ReceiveMessage(*endpoint_);
      if (!result.ok()) return result.status();
      if (result->type == MessageType::kCredit) continue;
      if (result->type != MessageType::kResult) return absl::InternalError("the receiver did not confirm");
      if (!result->ok) return PeerError(*result);
      if (result->hash == hash) return absl::OkStatus();
      return absl::DataLossError(absl::StrCat("hashes differ: sent ", ToHex(hash), " received ", ToHex(result->hash)));
    }
  }

  rdmad::Client client_;
  const SendOptions options_;
  int fd_ = -1;
  uint64_t file_bytes_ = 0;
  std::optional<rdmad::Pool> pool_;
  std::vector<rdmad::Buffer> buffers_;
  rdmad::Buffer read_slots_;
  rdmad::MemoryRegion region_;
  rdmad::RemoteBuffer slots_;
  uint32_t credits_ = 0;
  Sha256 sha256_;
  std::optional<rdmad::Endpoint> endpoint_;
};

}  // namespace

const char* ModeName(Mode mode) {
  switch (mode) {
    case Mode::kSend:
      return "send";
    case Mode::kWrite:
      return "write";
    case Mode::kRead:
      return "read";
  }
  return "?";
}

absl::StatusOr<Outcome> SendFile(const rdmad::Client& client, const SendOptions& options) {
  return Sender(client, options).Run();
}

}  // namespace filecopy
