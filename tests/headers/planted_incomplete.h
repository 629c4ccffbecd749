// The header test must reject this: a public header includes everything that it uses.
#pragma once

inline std::string planted() { return {}; }
