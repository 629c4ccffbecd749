// A digest that identifies data. It is not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace program {

/// FNV-1a over 64-bit numbers, with shifts so that the top bits of a number affect all bits of the digest.
class Digest {
public:
    void add(std::uint64_t number) {
        value_ = (value_ ^ number) * 1099511628211ULL;
        value_ ^= value_ >> 32;
    }
    /// Adds the bytes in eights, and their number.
    void add(std::span<const std::byte> bytes) {
        add(bytes.size());
        while (!bytes.empty()) {
            std::uint64_t number = 0;
            const std::size_t count = bytes.size() < sizeof number ? bytes.size() : sizeof number;
            std::memcpy(&number, bytes.data(), count);
            add(number);
            bytes = bytes.subspan(count);
        }
    }
    std::uint64_t value() const { return value_; }

private:
    std::uint64_t value_ = 14695981039346656037ULL;
};

}  // namespace program
