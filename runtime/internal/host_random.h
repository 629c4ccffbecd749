// The generator of the host, for those who call what may draw from it.
#pragma once

#include <cstdint>

namespace lockstep {

/// What is drawn from `manual_seed`'s generator while one lives is drawn again afterwards.
class HostRandomScope {
public:
    HostRandomScope();
    ~HostRandomScope();
    HostRandomScope(const HostRandomScope&) = delete;
    HostRandomScope& operator=(const HostRandomScope&) = delete;

private:
    std::uint64_t position_;
};

}  // namespace lockstep
