// All of the SDK but rdmad/asio.h.
#pragma once

#include "rdmad/address.h"
#include "rdmad/client.h"
#include "rdmad/cm.h"
#include "rdmad/endpoint.h"
#include "rdmad/pool.h"
#include "rdmad/types.h"
#include "rdmad/verbs.h"
