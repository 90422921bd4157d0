#pragma once

namespace rdmad::sdk {

// Of the SDK and the tools that come with it.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace rdmad::sdk
