// The warnings of a test, which come from threads of the library, too.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "lockstep/runtime/warning.h"

namespace lockstep::test {

class TakenWarnings {
public:
    TakenWarnings()
        : before_(set_warning_handler([this](const std::string& text) {
              const std::scoped_lock lock(mutex_);
              all_.push_back(text);
          })) {}
    ~TakenWarnings() { set_warning_handler(before_); }
    TakenWarnings(const TakenWarnings&) = delete;
    TakenWarnings& operator=(const TakenWarnings&) = delete;

    std::vector<std::string> all() const {
        const std::scoped_lock lock(mutex_);
        return all_;
    }

private:
    mutable std::mutex mutex_;
    std::vector<std::string> all_;
    WarningHandler before_;
};

}  // namespace lockstep::test
