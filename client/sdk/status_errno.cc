#include "client/sdk/status_errno.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rdmad::sdk {
namespace {

constexpr char kErrnoUrl[] = "rdmad.dev/errno";

absl::StatusCode CodeOfErrno(int error_number) {
  switch (error_number) {
    case 0:
      return absl::StatusCode::kOk;
    case EINVAL:
    case ENAMETOOLONG:
    case EAFNOSUPPORT:
    case EFAULT:
    case EBADF:
      return absl::StatusCode::kInvalidArgument;
    case EADDRINUSE:
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case ENOENT:
    case ENODEV:
    case ENXIO:
    case EADDRNOTAVAIL:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
      return absl::StatusCode::kPermissionDenied;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case EDQUOT:
      return absl::StatusCode::kResourceExhausted;
    case ENOTCONN:
    case EISCONN:
    case EBUSY:
      return absl::StatusCode::kFailedPrecondition;
    case ETIMEDOUT:
    case EAGAIN:
      return absl::StatusCode::kDeadlineExceeded;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
      return absl::StatusCode::kAborted;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EPIPE:
      return absl::StatusCode::kUnavailable;
    case EOPNOTSUPP:
    case ENOSYS:
      return absl::StatusCode::kUnimplemented;
    case EINTR:
    case ECANCELED:
      return absl::StatusCode::kCancelled;
    default:
      return absl::StatusCode::kInternal;
  }
}

int ErrnoOfCode(absl::StatusCode code) noexcept {
  switch (code) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kCancelled:
      return EINTR;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:  // verbs: a wrong state is EINVAL
      return EINVAL;
    case absl::StatusCode::kDeadlineExceeded:
      return ETIMEDOUT;
    case absl::StatusCode::kNotFound:
      return ENODEV;
    case absl::StatusCode::kAlreadyExists:
      return EADDRINUSE;
    case absl::StatusCode::kPermissionDenied:
      return EACCES;
    case absl::StatusCode::kUnauthenticated:
      return EPERM;
    case absl::StatusCode::kResourceExhausted:
      return ENOMEM;
    case absl::StatusCode::kAborted:
      return ECONNREFUSED;
    case absl::StatusCode::kOutOfRange:
      return ENOTCONN;  // the end of a connection
    case absl::StatusCode::kUnimplemented:
      return EOPNOTSUPP;
    case absl::StatusCode::kUnavailable:
      return ENODEV;  // the daemon is the device
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      break;
    default:  // absl reserves the right to add codes
      break;
  }
  return EIO;
}

}  // namespace

absl::Status StatusWithErrno(absl::StatusCode code, int error_number, const std::string& message) {
  absl::Status status(code, message);
  // Only where the code does not say it already: a payload shows in ToString().
  if (ErrnoOfCode(code) != error_number) status.SetPayload(kErrnoUrl, absl::Cord(std::to_string(error_number)));
  return status;
}

absl::Status ErrnoToStatus(int error_number, const std::string& what) {
  return StatusWithErrno(CodeOfErrno(error_number), error_number, absl::StrCat(what, ": ", strerror(error_number)));
}

int StatusToErrno(const absl::Status& status) noexcept {
  if (status.ok()) return 0;
  if (const auto payload = status.GetPayload(kErrnoUrl); payload.has_value()) {
    int error_number = 0;
    if (absl::SimpleAtoi(std::string(*payload), &error_number) && error_number > 0) return error_number;
  }
  return ErrnoOfCode(status.code());
}

}  // namespace rdmad::sdk
