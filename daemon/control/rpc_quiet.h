// Makes gRPC sleep when there is nothing to do. Measured with gRPC 1.51: an idle server otherwise
// wakes up about twice a second, for ever.
//
// Call Before() before anything else of gRPC, and After() once a server runs. Thread: any one,
// once.
#pragma once

namespace rdmad::control {

// Gives gRPC an event engine whose one thread waits for its next timer instead of looking every
// second.
void QuietGrpcBefore();

// Stops the older timer threads (iomgr's). They serve deadlines, keepalive and connection ages, of
// which we use none; a client's deadline is enforced by the client, which then resets its stream.
// Does nothing with a gRPC that has no such threads.
void QuietGrpcAfter();

}  // namespace rdmad::control
