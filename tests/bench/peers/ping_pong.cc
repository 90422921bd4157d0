// Round trips between two processes over a stream socket: what programs use where they do not use
// rdmad.
//
//   ping_pong unix [--size N] [--iterations N | --seconds S] [--polled]
//   ping_pong tcp  [...]                                   over 127.0.0.1
//   ping_pong tcp-server ADDRESS PORT [--polled]           one connection, then it ends
//   ping_pong tcp-client ADDRESS PORT [...]
//
// Blocking: each side sleeps in recv(2). Polled: each side calls recv with MSG_DONTWAIT again and
// again, giving up the processor in between, as rdmad's polled style does.
// Prints one line of JSON with percentiles of the round trip.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/peers/sample_stats.h"

namespace rdmad::bench {
namespace {

struct Options {
  size_t size_bytes = 64;
  int iterations = 20000;
  double seconds = 0;  // if not 0, instead of iterations
  bool polled = false;
};

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "ping_pong: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

// False at the end of the stream.
bool ReceiveAll(int fd, std::vector<char>& buffer, bool polled) {
  size_t at = 0;
  while (at < buffer.size()) {
    const ssize_t bytes =
        ::recv(fd, buffer.data() + at, buffer.size() - at, polled ? MSG_DONTWAIT : 0);
    if (bytes == 0) return false;
    if (bytes < 0) {
      if (errno == EAGAIN) {
        ::sched_yield();
        continue;
      }
      if (errno == EINTR) continue;
      if (errno == ECONNRESET) return false;
      Fail("recv");
    }
    at += static_cast<size_t>(bytes);
  }
  return true;
}

void SendAll(int fd, const std::vector<char>& buffer) {
  size_t at = 0;
  while (at < buffer.size()) {
    const ssize_t bytes = ::send(fd, buffer.data() + at, buffer.size() - at, MSG_NOSIGNAL);
    if (bytes < 0) {
      if (errno == EPIPE || errno == ECONNRESET) return;
      Fail("send");
    }
    at += static_cast<size_t>(bytes);
  }
}

void Echo(int fd, const Options& options) {
  std::vector<char> buffer(options.size_bytes);
  while (ReceiveAll(fd, buffer, options.polled)) SendAll(fd, buffer);
}

void Ping(int fd, const Options& options, const char* name) {
  std::vector<char> buffer(options.size_bytes, 'x');
  std::vector<int64_t> samples_ns;
  samples_ns.reserve(static_cast<size_t>(options.iterations));
  const auto one = [&] {
    const int64_t start_ns = NowNs();
    SendAll(fd, buffer);
    if (!ReceiveAll(fd, buffer, options.polled)) Fail("the peer hung up");
    return NowNs() - start_ns;
  };
  const int warm_up = options.iterations / 10;
  for (int i = 0; i < warm_up; ++i) one();
  const int64_t end_ns = NowNs() + static_cast<int64_t>(options.seconds * 1e9);
  for (int i = 0; options.seconds > 0 ? NowNs() < end_ns : i < options.iterations; ++i) {
    samples_ns.push_back(one());
  }
  const std::string full = std::string(name) + (options.polled ? " polled" : " blocking");
  SampleStats(std::move(samples_ns)).Print(full.c_str(), options.size_bytes);
}

sockaddr_in AddressOf(const char* text, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::inet_pton(AF_INET, text, &address.sin_addr) != 1) Fail("address");
  return address;
}

void SetNoDelay(int fd) {
  const int one = 1;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) != 0) Fail("TCP_NODELAY");
}

// `port` is filled in if 0.
int Listen(const char* text, int* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  sockaddr_in address = AddressOf(text, *port);
  socklen_t size = sizeof(address);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0) Fail("bind");
  if (::listen(fd, 1) != 0) Fail("listen");
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  *port = ntohs(address.sin_port);
  return fd;
}

int Accept(int listener) {
  const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) Fail("accept");
  SetNoDelay(fd);
  return fd;
}

int Connect(const char* text, int port) {
  const sockaddr_in address = AddressOf(text, port);
  for (int attempt = 0;; ++attempt) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      SetNoDelay(fd);
      return fd;
    }
    ::close(fd);
    if (attempt == 100) Fail("connect");
    ::usleep(50'000);  // the server may not be there yet
  }
}

// Echoes in a child process, pings in this one.
template <typename ChildFd, typename ParentFd>
void Fork(const Options& options, const char* name, ChildFd child_fd, ParentFd parent_fd) {
  const pid_t child = ::fork();
  if (child < 0) Fail("fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Echo(child_fd(), options);
    ::_exit(0);
  }
  const int fd = parent_fd();
  Ping(fd, options, name);
  ::shutdown(fd, SHUT_RDWR);
  ::waitpid(child, nullptr, 0);
}

int Usage() {
  std::fprintf(stderr,
               "usage: ping_pong unix|tcp [--size N] [--iterations N | --seconds S] [--polled]\n"
               "       ping_pong tcp-server|tcp-client ADDRESS PORT [...]\n");
  return 2;
}

int Main(int argc, char** argv) {
  Options options;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--polled") {
      options.polled = true;
    } else if (word == "--size" && i + 1 < argc) {
      options.size_bytes = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--iterations" && i + 1 < argc) {
      options.iterations = std::atoi(argv[++i]);
    } else if (word == "--seconds" && i + 1 < argc) {
      options.seconds = std::strtod(argv[++i], nullptr);
    } else {
      words.push_back(word);
    }
  }
  if (options.size_bytes == 0 || options.iterations < 1 || options.seconds < 0) return Usage();
  if (words == std::vector<std::string>{"unix"}) {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) Fail("socketpair");
    Fork(
        options, "AF_UNIX stream",
        [&] {
          ::close(fds[0]);
          return fds[1];
        },
        [&] {
          ::close(fds[1]);
          return fds[0];
        });
    return 0;
  }
  if (words == std::vector<std::string>{"tcp"}) {
    int port = 0;
    const int listener = Listen("127.0.0.1", &port);
    Fork(
        options, "TCP loopback", [&] { return Accept(listener); },
        [&] { return Connect("127.0.0.1", port); });
    return 0;
  }
  if (words.size() != 3) return Usage();
  int port = std::atoi(words[2].c_str());
  if (words[0] == "tcp-server") {
    Echo(Accept(Listen(words[1].c_str(), &port)), options);
    return 0;
  }
  if (words[0] == "tcp-client") {
    Ping(Connect(words[1].c_str(), port), options, "TCP");
    return 0;
  }
  return Usage();
}

}  // namespace
}  // namespace rdmad::bench

int main(int argc, char** argv) {
  return rdmad::bench::Main(argc, argv);
}
