// Words for the numbers of verbs.
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "client/sdk/status_errno.h"
#include "rdmad/client.h"
#include "rdmad/cm.h"
#include "rdmad/types.h"

namespace rdmad {

const char* WcStatusString(WcStatus status) noexcept {
  switch (status) {
    case WcStatus::kSuccess:
      return "success";
    case WcStatus::kLocLenErr:
      return "local length error";
    case WcStatus::kLocQpOpErr:
      return "local QP operation error";
    case WcStatus::kLocProtErr:
      return "local protection error";
    case WcStatus::kWrFlushErr:
      return "work request flushed";
    case WcStatus::kMwBindErr:
      return "memory window bind error";
    case WcStatus::kBadRespErr:
      return "bad response";
    case WcStatus::kLocAccessErr:
      return "local access error";
    case WcStatus::kRemInvReqErr:
      return "remote invalid request";
    case WcStatus::kRemAccessErr:
      return "remote access error";
    case WcStatus::kRemOpErr:
      return "remote operation error";
    case WcStatus::kRetryExcErr:
      return "transport retry counter exceeded";
    case WcStatus::kRnrRetryExcErr:
      return "RNR retry counter exceeded";
    case WcStatus::kRemAbortErr:
      return "remote aborted";
    case WcStatus::kFatalErr:
      return "fatal error";
    case WcStatus::kRespTimeoutErr:
      return "response timeout";
    case WcStatus::kGeneralErr:
      return "general error";
  }
  return "unknown status";
}

absl::Status WcStatusToStatus(WcStatus status) {
  const auto make = [status](absl::StatusCode code, const char* meaning) {
    return sdk::StatusWithErrno(code, EIO, absl::StrCat(WcStatusString(status), ": ", meaning));
  };
  switch (status) {
    case WcStatus::kSuccess:
      return absl::OkStatus();
    case WcStatus::kLocLenErr:
      return make(absl::StatusCode::kInvalidArgument, "a message did not fit into the receive, or is over the limit");
    case WcStatus::kLocQpOpErr:
    case WcStatus::kMwBindErr:
    case WcStatus::kLocAccessErr:
      return make(absl::StatusCode::kInvalidArgument, "the local QP refused the work request");
    case WcStatus::kLocProtErr:
      return make(absl::StatusCode::kInvalidArgument, "an lkey does not cover the local memory named with it");
    case WcStatus::kWrFlushErr:
      return make(absl::StatusCode::kCancelled, "the connection ended first");
    case WcStatus::kRemAccessErr:
      return make(absl::StatusCode::kPermissionDenied, "the peer's rkey does not allow this access to this range");
    case WcStatus::kRemInvReqErr:
      return make(absl::StatusCode::kInvalidArgument, "the peer cannot take this; is its receive too short?");
    case WcStatus::kRetryExcErr:
    case WcStatus::kRespTimeoutErr:
      return make(absl::StatusCode::kUnavailable, "the peer does not answer any more");
    case WcStatus::kRnrRetryExcErr:
      return make(absl::StatusCode::kResourceExhausted, "the peer had no receive posted");
    case WcStatus::kBadRespErr:
    case WcStatus::kRemOpErr:
    case WcStatus::kRemAbortErr:
    case WcStatus::kFatalErr:
    case WcStatus::kGeneralErr:
      break;
  }
  return make(absl::StatusCode::kInternal, "the operation failed");
}

const char* EventString(CmEventType type) noexcept {
  switch (type) {
    case CmEventType::kAddrResolved:
      return "RDMA_CM_EVENT_ADDR_RESOLVED";
    case CmEventType::kAddrError:
      return "RDMA_CM_EVENT_ADDR_ERROR";
    case CmEventType::kRouteResolved:
      return "RDMA_CM_EVENT_ROUTE_RESOLVED";
    case CmEventType::kRouteError:
      return "RDMA_CM_EVENT_ROUTE_ERROR";
    case CmEventType::kConnectRequest:
      return "RDMA_CM_EVENT_CONNECT_REQUEST";
    case CmEventType::kConnectResponse:
      return "RDMA_CM_EVENT_CONNECT_RESPONSE";
    case CmEventType::kConnectError:
      return "RDMA_CM_EVENT_CONNECT_ERROR";
    case CmEventType::kUnreachable:
      return "RDMA_CM_EVENT_UNREACHABLE";
    case CmEventType::kRejected:
      return "RDMA_CM_EVENT_REJECTED";
    case CmEventType::kEstablished:
      return "RDMA_CM_EVENT_ESTABLISHED";
    case CmEventType::kDisconnected:
      return "RDMA_CM_EVENT_DISCONNECTED";
    case CmEventType::kDeviceRemoval:
      return "RDMA_CM_EVENT_DEVICE_REMOVAL";
    case CmEventType::kMulticastJoin:
      return "RDMA_CM_EVENT_MULTICAST_JOIN";
    case CmEventType::kMulticastError:
      return "RDMA_CM_EVENT_MULTICAST_ERROR";
    case CmEventType::kAddrChange:
      return "RDMA_CM_EVENT_ADDR_CHANGE";
    case CmEventType::kTimewaitExit:
      return "RDMA_CM_EVENT_TIMEWAIT_EXIT";
  }
  return "UNKNOWN EVENT";
}

const char* AsyncEventString(uint32_t type) noexcept {
  switch (type) {
    case kAsyncCqErr:
      return "CQ error";
    case kAsyncQpFatal:
      return "local work queue catastrophic error";
    case kAsyncQpReqErr:
      return "invalid request local work queue error";
    case kAsyncQpAccessErr:
      return "local access violation work queue error";
    case kAsyncCommEst:
      return "communication established";
    case kAsyncSqDrained:
      return "send queue drained";
    case kAsyncPathMig:
      return "path migrated";
    case kAsyncPathMigErr:
      return "path migration request error";
    case kAsyncDeviceFatal:
      return "local catastrophic error";
    case kAsyncPortActive:
      return "port active";
    case kAsyncPortErr:
      return "port error";
    case kAsyncLidChange:
      return "LID change";
    case kAsyncPkeyChange:
      return "PKey change";
    case kAsyncSmChange:
      return "SM change";
    case kAsyncSrqErr:
      return "SRQ catastrophic error";
    case kAsyncSrqLimitReached:
      return "SRQ limit reached";
    case kAsyncQpLastWqe:
      return "last WQE reached";
    case kAsyncClientReregister:
      return "client reregistration";
    case kAsyncGidChange:
      return "GID table change";
    case kAsyncWqFatal:
      return "WQ fatal error";
    default:
      return "unknown event";
  }
}

}  // namespace rdmad
