// Thousands of connections between two applications that do nothing with them.
//
//   many_connections --run-dir DIR --connections N --listen ADDRESS        takes N
//   many_connections --run-dir DIR --connections N --connect ADDRESS:PORT  makes N
//
// Written as an application with thousands of connections is: all of them share one event channel
// and two CQs, and one receive is posted in each. 32 are made side by side, or `--at-once N`.
// Prints a line of JSON for what has happened ("listening", "connected", "disconnected"), with
// times of the machine's monotonic clock, and stays until its standard input ends, or, with
// `--until killed`, until it is killed.
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "rdmad/rdmad.h"

namespace rdmad::bench {
namespace {

constexpr absl::Duration kResolveTimeout = absl::Seconds(10);
constexpr size_t kMessageBytes = 64;

struct Options {
  std::string run_dir;
  std::string listen;
  std::string connect;
  int connections = 0;
  int at_once = 32;
  bool until_killed = false;
};

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "many_connections: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

void Check(const absl::Status& status) {
  if (!status.ok()) Fail(status);
}

template <typename T>
T OrFail(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(value.status());
  return std::move(value).value();
}

double Now() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// What both ends do alike.
class Crowd {
 public:
  Crowd(const Options& options, const char* name) : options_(options) {
    AttachOptions attach;
    attach.run_dir = options.run_dir;
    attach.name = name;
    client_.emplace(OrFail(Client::Attach(attach)));
    channel_ = OrFail(EventChannel::Create(*client_));
    pool_.emplace(OrFail(Pool::Create(*client_, 1 << 16, {.name = "many"})));
    buffer_ = OrFail(pool_->Allocate(kMessageBytes));
    ids_.reserve(static_cast<size_t>(options.connections));
  }

 protected:
  // The queues of an endpoint as they are by default; nobody looks at what arrives.
  void MakeQp(CmId& id) {
    if (!send_cq_) {
      const uint32_t depth = static_cast<uint32_t>(options_.connections) + 1;
      send_cq_ = OrFail(CompletionQueue::Create(*client_, *id.device_index(), depth));
      recv_cq_ = OrFail(CompletionQueue::Create(*client_, *id.device_index(), depth));
    }
    QpInit init;
    init.send_cq = send_cq_;
    init.recv_cq = recv_cq_;
    init.cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_inline_bytes = 64};
    Check(id.CreateQp(nullptr, init));
    if (!region_) region_ = OrFail(id.RegMsgs(buffer_.data(), kMessageBytes));
    Check(id.qp().PostRecv(0, buffer_.data(), kMessageBytes, &region_));
  }

  // The next event; null when the standard input has ended.
  std::unique_ptr<CmEvent> NextEvent() {
    while (true) {
      // A negative descriptor is not looked at.
      const int input = options_.until_killed ? -1 : STDIN_FILENO;
      pollfd waits[] = {{channel_->fd(), POLLIN, 0}, {input, POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0) continue;
      char byte;
      if (waits[1].revents != 0 && ::read(STDIN_FILENO, &byte, 1) <= 0) return nullptr;
      if (waits[0].revents != 0) return OrFail(channel_->GetEvent());
    }
  }

  // What both sides hear, or should not.
  void OnOther(const CmEvent& event) {
    if (event.type() == CmEventType::kDisconnected) return OnDisconnected();
    if (event.type() != CmEventType::kTimewaitExit) Check(event.ToStatus());
  }

  // Counts an end; the first and the last one are told.
  void OnDisconnected() {
    const double now = Now();
    if (disconnected_++ == 0) first_end_ = now;
    if (disconnected_ < options_.connections) return;
    std::printf(
        "{\"event\": \"disconnected\", \"count\": %d, \"first_at_s\": %.6f, \"last_at_s\": %.6f}\n",
        disconnected_, first_end_, now);
    std::fflush(stdout);
  }

  const Options& options_;
  std::optional<Client> client_;
  std::unique_ptr<EventChannel> channel_;
  std::optional<Pool> pool_;
  Buffer buffer_;
  MemoryRegion region_;
  CompletionQueue send_cq_;
  CompletionQueue recv_cq_;
  std::vector<std::unique_ptr<CmId>> ids_;

 private:
  int disconnected_ = 0;
  double first_end_ = 0;
};

class Taker : public Crowd {
 public:
  explicit Taker(const Options& options) : Crowd(options, "taker") {}

  void Run() {
    std::unique_ptr<CmId> listener = OrFail(CmId::Create(*client_, channel_.get()));
    Check(listener->BindAddr(OrFail(Address::Parse(options_.listen + ":0"))));
    Check(listener->Listen());
    std::printf("{\"event\": \"listening\", \"port\": %d}\n", listener->src_port());
    std::fflush(stdout);
    while (std::unique_ptr<CmEvent> event = NextEvent()) {
      switch (event->type()) {
        case CmEventType::kConnectRequest: {
          std::unique_ptr<CmId> id = event->TakeId();
          event.reset();
          MakeQp(*id);
          Check(id->Accept());
          ids_.push_back(std::move(id));
          break;
        }
        default:
          OnOther(*event);
      }
    }
  }
};

class Maker : public Crowd {
 public:
  explicit Maker(const Options& options)
      : Crowd(options, "maker"), peer_(OrFail(Address::Parse(options.connect))) {}

  void Run() {
    const double start = Now();
    double at_tenth = start;
    double first_tenth = 0;
    for (int i = 0; i < options_.at_once; ++i) StartNext();
    while (std::unique_ptr<CmEvent> event = NextEvent()) {
      CmId& id = *event->id();
      switch (event->type()) {
        case CmEventType::kAddrResolved:
          Check(id.ResolveRoute(kResolveTimeout));
          break;
        case CmEventType::kRouteResolved:
          MakeQp(id);
          Check(id.Connect());
          break;
        case CmEventType::kEstablished: {
          ++connected_;
          event.reset();
          StartNext();
          const int tenth = options_.connections / 10;
          if (tenth > 0 && connected_ == tenth) first_tenth = Now() - start;
          if (tenth > 0 && connected_ == options_.connections - tenth) at_tenth = Now();
          if (connected_ == options_.connections)
            Told(Now() - start, first_tenth, Now() - at_tenth);
          break;
        }
        default:
          OnOther(*event);
      }
    }
  }

 private:
  void StartNext() {
    if (static_cast<int>(ids_.size()) == options_.connections) return;
    ids_.push_back(OrFail(CmId::Create(*client_, channel_.get())));
    Check(ids_.back()->ResolveAddr(Address(), peer_, kResolveTimeout));
  }

  void Told(double seconds, double first_tenth, double last_tenth) const {
    std::printf(
        "{\"event\": \"connected\", \"count\": %d, \"seconds\": %.3f, \"first_tenth_s\": %.4f, "
        "\"last_tenth_s\": %.4f}\n",
        connected_, seconds, first_tenth, last_tenth);
    std::fflush(stdout);
  }

  const Address peer_;
  int connected_ = 0;
};

int Usage() {
  std::fprintf(stderr,
               "usage: many_connections --run-dir DIR --connections N --listen ADDRESS\n"
               "       many_connections --run-dir DIR --connections N --connect ADDRESS:PORT\n");
  return 2;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    const char* const value = argv[i + 1];
    if (word == "--run-dir") options.run_dir = value;
    if (word == "--listen") options.listen = value;
    if (word == "--connect") options.connect = value;
    if (word == "--connections") options.connections = std::atoi(value);
    if (word == "--at-once") options.at_once = std::atoi(value);
    if (word == "--until") options.until_killed = std::string(value) == "killed";
  }
  if (options.run_dir.empty() || options.connections < 1 || options.at_once < 1 ||
      options.listen.empty() == options.connect.empty()) {
    return Usage();
  }
  if (!options.listen.empty()) Taker(options).Run();
  if (!options.connect.empty()) Maker(options).Run();
  return 0;
}

}  // namespace
}  // namespace rdmad::bench

int main(int argc, char** argv) {
  return rdmad::bench::Main(argc, argv);
}
