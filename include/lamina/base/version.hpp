// The version of the library. The build reads it from here, so that it is written down once.
#pragma once

#define LAMINA_VERSION_MAJOR 0
#define LAMINA_VERSION_MINOR 1
#define LAMINA_VERSION_PATCH 0

namespace lamina {

inline constexpr const char* version = "0.1.0";

}  // namespace lamina
