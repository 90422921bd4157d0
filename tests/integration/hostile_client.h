// An application that does whatever it can to the daemon: it sets everything up in order, by the
// contract, and then writes what it likes wherever it can write.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "proto/shm/completion_queue.h"
#include "proto/shm/doorbell.h"
#include "proto/shm/work_queue.h"
#include "tests/support/raw_client.h"

namespace rdmad::testing {

// A shared segment, mapped for reading and writing.
class SharedMapping {
 public:
  static absl::StatusOr<SharedMapping> Map(UniqueFd fd);
  SharedMapping(SharedMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  SharedMapping& operator=(SharedMapping&&) = delete;
  ~SharedMapping();

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  explicit SharedMapping(std::span<std::byte> bytes) noexcept : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

// Thread: one at a time.
class HostileClient {
 public:
  // Attaches, makes a pool with a region, CQs, channels, CM ids, and two QPs that are connected to
  // each other. Errors: those of the calls.
  static absl::StatusOr<std::unique_ptr<HostileClient>> Create(const std::string& run_dir,
                                                               uint64_t seed);

  // One random attack on shared memory: see the .cc.
  void Scribble();
  // A send queue with an impossible number of WRs in it. Returns the handle of its QP.
  uint64_t BreakSendQueue();
  // Makes QPs again that the daemon took out of service. False: the session is over.
  [[nodiscard]] bool Recover();
  // The daemon has ended the session.
  [[nodiscard]] bool HungUp() const;

  RawClient& raw() { return raw_; }

 private:
  struct Queue {
    std::byte* data;  // of the WorkQueueHeader or CqHeader
    uint32_t slot_count;
  };
  struct Qp {
    uint64_t handle = 0;
    uint32_t qpn = 0;
    Queue send{};
    Queue recv{};
    uint32_t doorbell_index = 0;
  };

  HostileClient(RawClient raw, uint64_t seed) : raw_(std::move(raw)), random_(seed) {}
  absl::Status SetUp();
  absl::Status MakeQps();
  absl::StatusOr<Qp> MakeQp();
  absl::Status ConnectQp(const Qp& from, const Qp& to);
  absl::StatusOr<Queue> Locate(const v1::QueueLocation& location);
  absl::StatusOr<std::span<std::byte>> Map(UniqueFd fd);

  void RandomBytes();
  void PlausibleWork();
  void WildIndices();
  void AllDoorbells();
  void FillWakePipe();
  shm::ControlSegment& control();
  uint64_t Interesting();

  RawClient raw_;
  std::mt19937_64 random_;
  std::vector<SharedMapping> mappings_;  // control segment, arenas, pool
  std::map<uint64_t, std::byte*> arenas_;
  std::byte* pool_ = nullptr;
  uint64_t pd_ = 0;
  uint64_t cq_ = 0;
  Queue cq_queue_{};
  uint32_t lkey_ = 0;
  uint32_t rkey_ = 0;
  std::string gid_;
  uint32_t gid_index_ = 0;
  std::vector<UniqueFd> channels_;
  std::array<Qp, 2> qps_;
};

}  // namespace rdmad::testing
