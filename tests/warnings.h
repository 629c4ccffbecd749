// Warnings of the library, recorded for tests.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "lockstep/runtime/warning.h"

namespace lockstep::test {

/// Records the warnings of all threads while it lives.
class Warnings {
public:
    Warnings()
        : previous_(set_warning_handler([this](const std::string& text) {
              const std::scoped_lock lock(mutex_);
              texts_.push_back(text);
          })) {}
    ~Warnings() { set_warning_handler(previous_); }
    Warnings(const Warnings&) = delete;
    Warnings& operator=(const Warnings&) = delete;

    std::vector<std::string> texts() const {
        const std::scoped_lock lock(mutex_);
        return texts_;
    }
    /// All texts, one per line.
    std::string lines() const {
        std::string result;
        for (const std::string& text : texts()) result += text + "\n";
        return result;
    }

private:
    mutable std::mutex mutex_;
    std::vector<std::string> texts_;
    WarningHandler previous_;
};

}  // namespace lockstep::test
