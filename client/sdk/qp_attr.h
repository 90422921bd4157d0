// QP attributes between the public struct and the message.
#pragma once

#include "proto/rdmad/v1/verbs.pb.h"
#include "rdmad/types.h"

namespace rdmad::sdk {

v1::QpAttr ToProto(const QpAttr& attr);
QpAttr FromProto(const v1::QpAttr& attr);

}  // namespace rdmad::sdk
