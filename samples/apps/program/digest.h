// A digest that identifies data. It is not cryptographic.
#pragma once

#include <cstdint>

namespace program {

/// FNV-1a over 64-bit numbers.
class Digest {
public:
    void add(std::uint64_t number) { value_ = (value_ ^ number) * 1099511628211ULL; }
    std::uint64_t value() const { return value_; }

private:
    std::uint64_t value_ = 14695981039346656037ULL;
};

}  // namespace program
