// Must be refused by the header test: a public header includes what it uses.
#pragma once

inline std::string planted() { return {}; }
