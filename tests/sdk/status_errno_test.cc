#include "client/sdk/status_errno.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace rdmad::sdk {
namespace {

TEST(StatusErrno, EveryErrnoComesBackAsItWent) {
  for (int error = 1; error < 134; ++error) {
    const absl::Status status = ErrnoToStatus(error, "call");
    EXPECT_FALSE(status.ok()) << error;
    EXPECT_EQ(StatusToErrno(status), error);
  }
}

TEST(StatusErrno, NamesTheCallAndTheError) {
  EXPECT_EQ(ErrnoToStatus(ENOENT, "open: file=x").message(), "open: file=x: No such file or directory");
}

TEST(StatusErrno, OkIsZero) { EXPECT_EQ(StatusToErrno(absl::OkStatus()), 0); }

TEST(StatusErrno, OwnErrnoStandsBesideACodeThatHasAnother) {
  const absl::Status status = StatusWithErrno(absl::StatusCode::kDeadlineExceeded, EAGAIN, "no event");
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(StatusToErrno(status), EAGAIN);
}

TEST(StatusErrno, CodesOfTheDaemonMapAsVerbsWants) {
  const struct {
    absl::Status status;
    int error;
  } kCases[] = {
      {absl::ResourceExhaustedError("queue full"), ENOMEM},   {absl::InvalidArgumentError(""), EINVAL},
      {absl::FailedPreconditionError("wrong state"), EINVAL}, {absl::AlreadyExistsError("port"), EADDRINUSE},
      {absl::NotFoundError("device"), ENODEV},                {absl::PermissionDeniedError(""), EACCES},
      {absl::UnimplementedError("UD"), EOPNOTSUPP},           {absl::DeadlineExceededError(""), ETIMEDOUT},
      {absl::AbortedError("rejected"), ECONNREFUSED},         {absl::InternalError(""), EIO},
  };
  for (const auto& c : kCases) EXPECT_EQ(StatusToErrno(c.status), c.error) << c.status;
}

TEST(StatusErrno, PlainCodesCarryNoPayloadThatWouldShow) {
  EXPECT_EQ(ErrnoToStatus(EINVAL, "x").ToString(), "INVALID_ARGUMENT: x: Invalid argument");
}

}  // namespace
}  // namespace rdmad::sdk
