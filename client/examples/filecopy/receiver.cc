#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/examples/filecopy/copy.h"
#include "client/examples/filecopy/progress.h"
#include "client/examples/filecopy/sha256.h"

namespace filecopy {
namespace {

// A file that appears under its name only when it is complete.
class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!part_.empty()) ::unlink(part_.c_str());
  }

  absl::Status Create(const std::string& path, uint64_t bytes) {
    path_ = path;
    const std::string part = path + ".part";
    fd_ = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) return absl::ErrnoToStatus(errno, part + ": open");
    part_ = part;
    // A full disk shows now, not after half of the file; where no room can be set aside, it shows later.
    const int error = bytes == 0 ? 0 : ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
    if (error != 0 && error != EOPNOTSUPP && error != EINVAL && error != ENODEV) {
      return absl::ErrnoToStatus(error, absl::StrCat(part, ": room for ", bytes, " bytes"));
    }
    return absl::OkStatus();
  }

  absl::Status Write(const std::byte* data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t count = ::write(fd_, data + done, bytes - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return absl::ErrnoToStatus(errno, part_ + ": write");
      done += static_cast<size_t>(count);
    }
    return absl::OkStatus();
  }

  absl::Status Commit() {
    if (::close(std::exchange(fd_, -1)) != 0) return absl::ErrnoToStatus(errno, part_ + ": close");
    if (::rename(part_.c_str(), path_.c_str()) != 0) return absl::ErrnoToStatus(errno, path_ + ": rename");
    part_.clear();
    return absl::OkStatus();
  }

 private:
  std::string path_;
  std::string part_;
  int fd_ = -1;
};

// A name from the network is a name, not a path.
std::string SafeName(const std::string& name) {
  const std::string last = name.substr(name.rfind('/') + 1);
  return last.empty() || last == "." || last == ".." ? "received" : last;
}

// Before the sender is waited for, not after.
absl::Status CheckFolderOf(const std::string& path) {
  struct stat info {};
  const bool is_folder = ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  const size_t slash = path.rfind('/');
  const std::string folder = is_folder                    ? path
                             : slash == std::string::npos ? "."
                                                          : path.substr(0, slash + 1);
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("--output: cannot write in ", folder));
}

std::string OutputPath(const std::string& output, const std::string& name) {
  if (output.empty()) return SafeName(name);
  struct stat info {};
  if (::stat(output.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return output + "/" + SafeName(name);
  return output;
}

class Receiver {
 public:
  Receiver(rdmad::Client client, const ReceiveOptions& options) : client_(std::move(client)), options_(options) {}

  absl::StatusOr<Outcome> Run() {
    if (absl::Status status = CheckFolderOf(options_.output); !status.ok()) return status;
    if (absl::Status status = Accept(); !status.ok()) return status;
    absl::Status status = Copy();
    if (!status.ok()) Apologize(status);
    endpoint_->Close().IgnoreError();
    if (!status.ok()) return status;
    return Outcome{path_, offer_.file_bytes, seconds_, offer_.mode, ToHex(hash_)};
  }

 private:
  absl::Status Accept() {
    rdmad::EndpointOptions options;
    options.send_depth = 64;
    options.recv_depth = 24;
    // In mode send a receive holds a chunk.
    options.max_recv_bytes = std::max<uint32_t>(options_.max_chunk_bytes, kMaxMessageBytes);
    absl::StatusOr<rdmad::Listener> listener = rdmad::Listener::Listen(client_, options_.address, options);
    if (!listener.ok()) return listener.status();
    if (!options_.quiet) std::fprintf(stderr, "recv: listening on %s\n", listener->local_addr().ToString().c_str());
    absl::StatusOr<rdmad::Endpoint> endpoint = listener->Accept();
    if (!endpoint.ok()) return endpoint.status();
    endpoint_ = std::move(endpoint).value();
    absl::StatusOr<rdmad::Pool> messages = rdmad::Pool::Create(client_, 1 << 20, {.name = "filecopy messages"});
    if (!messages.ok()) return messages.status();
    messages_ = std::move(messages).value();
    return absl::OkStatus();
  }

  absl::Status Copy() {
    absl::StatusOr<Message> offer = ReceiveMessage(*endpoint_);
    if (!offer.ok()) return offer.status();
    offer_ = std::move(offer).value();
    if (offer_.type != MessageType::kOffer || offer_.chunk_bytes == 0 || offer_.slot_count == 0) {
      return absl::InvalidArgumentError("the sender made no offer");
    }
    if (offer_.chunk_bytes > options_.max_chunk_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunks of ", offer_.chunk_bytes, " bytes are too long: limit=", options_.max_chunk_bytes));
    }
    path_ = OutputPath(options_.output, offer_.text);
    if (absl::Status status = file_.Create(path_, offer_.file_bytes); !status.ok()) return status;
    if (absl::Status status = SayReady(); !status.ok()) return status;
    const auto start = std::chrono::steady_clock::now();
    if (absl::Status status = ReceiveChunks(); !status.ok()) return status;
    if (absl::Status status = Finish(); !status.ok()) return status;
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return absl::OkStatus();
  }

  absl::Status SayReady() {
    Message ready;
    ready.type = MessageType::kReady;
    // Some receives are not posted anew at any time; these credits they cover.
    slot_count_ = std::min<uint32_t>(offer_.slot_count, endpoint_->options().recv_depth / 2);
    if (offer_.mode != Mode::kSend) {
      slot_count_ = offer_.slot_count;
      const uint64_t slot_bytes = uint64_t{slot_count_} * offer_.chunk_bytes;
      absl::StatusOr<rdmad::Pool> pool = rdmad::Pool::Create(client_, slot_bytes, {.name = "filecopy slots"});
      if (!pool.ok()) return pool.status();
      pool_ = std::move(pool).value();
      absl::StatusOr<rdmad::Buffer> slots = pool_->Allocate(slot_bytes);
      if (!slots.ok()) return slots.status();
      slots_ = std::move(slots).value();
    }
    if (offer_.mode == Mode::kWrite) {
      absl::StatusOr<rdmad::MemoryRegion> region = endpoint_->Share(slots_, rdmad::kAccessRemoteWrite);
      if (!region.ok()) return region.status();
      region_ = std::move(region).value();
      ready.slots = rdmad::Endpoint::Describe(region_);
    }
    ready.slot_count = slot_count_;
    return SendMessage(*endpoint_, *messages_, ready);
  }

  size_t BytesOf(uint64_t chunk) const {
    return static_cast<size_t>(
        std::min<uint64_t>(offer_.chunk_bytes, offer_.file_bytes - chunk * offer_.chunk_bytes));
  }
  std::byte* SlotOf(uint64_t chunk) const {
    return slots_.data() + chunk % offer_.slot_count * offer_.chunk_bytes;
  }

  absl::Status Store(const std::byte* data, size_t bytes) {
    sha256_.Update({data, bytes});
    if (absl::Status status = file_.Write(data, bytes); !status.ok()) return status;
    stored_bytes_ += bytes;
    ++stored_chunks_;
    Message credit;
    credit.type = MessageType::kCredit;
    credit.count = 1;
    return SendMessage(*endpoint_, *messages_, credit);
  }

  absl::Status ReceiveChunks() {
    Progress progress("recv", offer_.file_bytes, options_.quiet);
    while (stored_bytes_ < offer_.file_bytes) {
      absl::StatusOr<rdmad::Buffer> buffer = endpoint_->Receive();
      if (!buffer.ok()) return buffer.status();
      if (absl::Status status = OnMessage(*buffer); !status.ok()) return status;
      progress.Show(stored_bytes_);
    }
    return absl::OkStatus();
  }

  absl::Status OnMessage(const rdmad::Buffer& buffer) {
    switch (offer_.mode) {
      case Mode::kSend:
        if (!buffer.has_imm() || buffer.size() != BytesOf(stored_chunks_)) return Unexpected();
        return Store(buffer.data(), buffer.size());
      case Mode::kWrite:
        if (!buffer.has_imm()) return Unexpected();
        return Store(SlotOf(stored_chunks_), BytesOf(stored_chunks_));
      case Mode::kRead: {
        absl::StatusOr<Message> filled = Decode(buffer.text());
        if (!filled.ok() || filled->type != MessageType::kFilled) return Unexpected();
        return ReadNext();
      }
    }
    return Unexpected();
  }

  // Starts reading the chunk that was filled, and takes those that have arrived: several are under way at a time.
  absl::Status ReadNext() {
    const uint64_t chunk = stored_chunks_ + reads_.size();
    if (chunk * offer_.chunk_bytes >= offer_.file_bytes) return Unexpected();
    absl::StatusOr<rdmad::Buffer> piece = read_pieces_free_.empty() ? Piece() : TakePiece();
    if (!piece.ok()) return piece.status();
    piece->resize(BytesOf(chunk));
    reads_.push_back({0, std::move(piece).value()});
    absl::StatusOr<uint64_t> operation =
        endpoint_->StartRead(reads_.back().buffer, offer_.slots, chunk % offer_.slot_count * offer_.chunk_bytes);
    if (!operation.ok()) return operation.status();
    reads_.back().operation = *operation;
    const bool last = (chunk + 1) * offer_.chunk_bytes >= offer_.file_bytes;
    // The sender has as many slots as credits: wait only when all of them are being read.
    while (!reads_.empty() && (last || reads_.size() >= (offer_.slot_count + 1) / 2)) {
      if (absl::Status status = endpoint_->Wait(reads_.front().operation); !status.ok()) return status;
      Read done = std::move(reads_.front());
      reads_.pop_front();
      if (absl::Status status = Store(done.buffer.data(), done.buffer.size()); !status.ok()) return status;
      done.buffer.resize(done.buffer.capacity());
      read_pieces_free_.push_back(std::move(done.buffer));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<rdmad::Buffer> Piece() {
    slots_.Release();  // in this mode the memory is used in pieces
    return pool_->Allocate(offer_.chunk_bytes);
  }
  rdmad::Buffer TakePiece() {
    rdmad::Buffer piece = std::move(read_pieces_free_.front());
    read_pieces_free_.pop_front();
    return piece;
  }

  static absl::Status Unexpected() { return absl::InvalidArgumentError("the sender broke the protocol"); }

  absl::Status Finish() {
    absl::StatusOr<Message> done = ReceiveMessage(*endpoint_);
    if (!done.ok()) return done.status();
    if (done->type != MessageType::kDone) return Unexpected();
    hash_ = sha256_.Finish();
    if (hash_ != done->hash) {
      return absl::DataLossError(
          absl::StrCat("hashes differ: sent ", ToHex(done->hash), " received ", ToHex(hash_)));
    }
    if (absl::Status status = file_.Commit(); !status.ok()) return status;
    Message result;
    result.type = MessageType::kResult;
    result.hash = hash_;
    return SendMessage(*endpoint_, *messages_, result);
  }

  // The sender is to know why. If it is the sender who ended, this fails at once.
  void Apologize(const absl::Status& status) {
    Message result;
    result.type = MessageType::kResult;
    result.ok = false;
    result.text = std::string(status.message());
    SendMessage(*endpoint_, *messages_, result).IgnoreError();
  }

  struct Read {
    uint64_t operation;
    rdmad::Buffer buffer;
  };

  rdmad::Client client_;
  const ReceiveOptions options_;
  Message offer_;
  std::string path_;
  OutputFile file_;
  Sha256 sha256_;
  Hash hash_ = {};
  uint32_t slot_count_ = 0;
  uint64_t stored_bytes_ = 0;
  uint64_t stored_chunks_ = 0;
  double seconds_ = 0;
  std::optional<rdmad::Pool> messages_;
  std::optional<rdmad::Pool> pool_;
  rdmad::Buffer slots_;
  rdmad::MemoryRegion region_;
  std::deque<Read> reads_;
  std::deque<rdmad::Buffer> read_pieces_free_;
  std::optional<rdmad::Endpoint> endpoint_;
};

}  // namespace

absl::StatusOr<Outcome> ReceiveFile(const rdmad::Client& client, const ReceiveOptions& options) {
  return Receiver(client, options).Run();
}

}  // namespace filecopy
