// Checksums that identify data: files, layouts, names of jobs. Equal on every machine; not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// 64 bits of XXH3.
std::uint64_t digest_of(std::span<const std::byte> bytes) noexcept;
inline std::uint64_t digest_of(std::span<const std::size_t> numbers) noexcept {
    return digest_of(std::as_bytes(numbers));
}
inline std::uint64_t digest_of(std::string_view text) noexcept { return digest_of(std::as_bytes(std::span(text))); }

/// 128 bits of XXH3. It detects damage and mix-ups, but does not protect against forged files. CRC-32, which zlib
/// provides, would miss one in four billion differences, at a fraction of the speed.
class Digest {
public:
    /// Number of characters of `hex`.
    static constexpr std::size_t length = 32;

    Digest();
    ~Digest();
    Digest(const Digest&) = delete;
    Digest& operator=(const Digest&) = delete;

    void add(std::span<const std::byte> bytes);
    void add(std::uint64_t number);
    /// Adds the length first: "ab", "c" and "a", "bc" differ.
    void add(std::string_view text);
    /// Digest of all bytes added so far.
    std::string hex() const;
    /// The first half of that digest.
    std::uint64_t value() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep
