#pragma once

namespace rdmad::control {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace rdmad::control
