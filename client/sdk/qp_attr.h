// Attributes of QPs and addresses between the public structs and the messages.
#pragma once

#include "proto/rdmad/v1/verbs.pb.h"
#include "rdmad/types.h"

namespace rdmad::sdk {

v1::QpAttr ToProto(const QpAttr& attr);
v1::AddressHandleAttr ToProto(const AddressHandleAttr& attr);
QpAttr FromProto(const v1::QpAttr& attr);

}  // namespace rdmad::sdk
