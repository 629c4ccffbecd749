// What reading hostile files costs.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>

#include "lockstep/tests/catch.h"

namespace lockstep::test {

/// Megabytes of memory that a process takes for `body`; -1 where it does not end well.
inline long megabytes_for(const std::function<void()>& body) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        try {
            body();
        } catch (const std::exception&) {
            ::_exit(1);
        }
        ::_exit(0);
    }
    int status = 0;
    rusage used{};
    REQUIRE(::wait4(child, &status, 0, &used) == child);
    return status == 0 ? used.ru_maxrss / 1024 : -1;
}

}  // namespace lockstep::test
