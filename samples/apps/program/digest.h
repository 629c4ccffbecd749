// A digest that identifies data, not a cryptographic one.
#pragma once

#include <cstdint>

namespace program {

/// FNV-1a over numbers of 64 bits.
class Digest {
public:
    void add(std::uint64_t number) { value_ = (value_ ^ number) * 1099511628211ULL; }
    std::uint64_t value() const { return value_; }

private:
    std::uint64_t value_ = 14695981039346656037ULL;
};

}  // namespace program
