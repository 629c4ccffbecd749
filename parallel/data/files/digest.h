// A checksum by which contents of files are told apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::internal {

/// 128 bits of XXH3. It detects damage and mix-ups, but does not protect against forged files. CRC-32, which zlib
/// provides, would miss one in four billion differences, at a fraction of the speed.
class Digest {
public:
    /// Characters of `hex`.
    static constexpr std::size_t length = 32;

    Digest();
    ~Digest();
    Digest(const Digest&) = delete;
    Digest& operator=(const Digest&) = delete;

    void add(std::span<const std::byte> bytes);
    void add(std::uint64_t number);
    /// With its length in front: "ab", "c" and "a", "bc" differ.
    void add(std::string_view text);
    /// Digest of all bytes added so far, equal on every machine.
    std::string hex() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::internal
