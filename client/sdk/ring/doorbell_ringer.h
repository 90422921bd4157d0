// Tells the engine that a queue has new work: sets the queue's bit, and wakes the engine if it
// sleeps.
//
// Thread: any; keeps no state of its own.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "proto/shm/doorbell.h"
#include "proto/shm/engine_page.h"

namespace rdmad::sdk {

class DoorbellRinger {
 public:
  // `control` and `page` are mapped; `wake_fd` is the write end of the session's wake pipe and
  // should be non-blocking. All outlive the ringer.
  DoorbellRinger(shm::ControlSegment* control, const shm::EnginePage* page, int wake_fd) noexcept
      : control_(control), page_(page), wake_fd_(wake_fd) {}

  // To be called after WorkQueueWriter::Publish(). System calls only if the engine sleeps.
  void Ring(uint32_t doorbell_index) const noexcept {
    shm::RingDoorbell(*control_, doorbell_index);
    if (shm::EngineNeedsWake(*page_)) Wake();
  }

 private:
  // A full pipe will wake the engine as well. A pipe without a reader means that the daemon is
  // gone, of which the application hears elsewhere: it must not be killed by SIGPIPE, nor see errno
  // change.
  void Wake() const noexcept {
    const int saved_errno = errno;
    sigset_t pipe_signal;
    sigset_t before;
    sigset_t pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    const char byte = 1;
    ssize_t written;
    do {
      written = ::write(wake_fd_, &byte, 1);
    } while (written < 0 && errno == EINTR);
    if (written < 0 && errno == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
      const timespec no_wait{};
      while (sigtimedwait(&pipe_signal, nullptr, &no_wait) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    errno = saved_errno;
  }

  shm::ControlSegment* const control_;
  const shm::EnginePage* const page_;
  const int wake_fd_;
};

}  // namespace rdmad::sdk
