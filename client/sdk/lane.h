// One of the engines that serve the session: the doorbells there, and whom to wake. Objects keep a pointer to theirs.
//
// Thread: any. Owner: Session, until its end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/sdk/mapping.h"
#include "client/sdk/ring/doorbell_ringer.h"
#include "client/sdk/unique_fd.h"

namespace rdmad::sdk {

class Lane {
 public:
  // What the daemon sent. `operation` opens the message. Errors: Internal, FailedPrecondition (not what it should be).
  struct Parts {
    UniqueFd control_segment;
    uint64_t control_segment_bytes = 0;
    UniqueFd engine_page;
    uint64_t engine_page_bytes = 0;
    UniqueFd wake_pipe;
  };
  static absl::StatusOr<std::unique_ptr<Lane>> Map(const std::string& operation, Parts parts);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void Ring(uint32_t doorbell_index) const noexcept { ringer_.Ring(doorbell_index); }

 private:
  Lane(Mapping control, Mapping engine_page, UniqueFd wake_pipe) noexcept;

  const Mapping control_;
  const Mapping engine_page_;
  const UniqueFd wake_pipe_;
  const DoorbellRinger ringer_;
};

}  // namespace rdmad::sdk
