// The number of virtual CPU devices of a test program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace lockstep::test {

/// Sets LOCKSTEP_CPU_DEVICES; to be called before main, by the initializer of a constant. Exits if another file of the
/// program has asked for another number: such files belong to different programs.
inline bool set_cpu_devices(int count) {
    static const int first = count;
    if (first != count) {
        std::fprintf(stderr, "set_cpu_devices: files of this program ask for %d and for %d devices\n", first, count);
        std::_Exit(2);
    }
    return ::setenv("LOCKSTEP_CPU_DEVICES", std::to_string(count).c_str(), 1) == 0;
}

}  // namespace lockstep::test
