#include "lockstep/runtime/internal/digest.h"

#define XXH_INLINE_ALL  // header-only, so that an installed Lockstep needs no further package
#include <xxhash.h>

#include <array>
#include <bit>

namespace lockstep {

std::uint64_t digest_of(std::span<const std::byte> bytes) noexcept { return XXH3_64bits(bytes.data(), bytes.size()); }

struct Digest::State {
    XXH3_state_t state;  // over-aligned, which operator new supports
};

Digest::Digest() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->state); }
Digest::~Digest() = default;

void Digest::add(std::span<const std::byte> bytes) {
    if (!bytes.empty()) XXH3_128bits_update(&state_->state, bytes.data(), bytes.size());
}

void Digest::add(std::uint64_t number) {
    static_assert(std::endian::native == std::endian::little, "the same on every machine");
    add(std::as_bytes(std::span(&number, 1)));
}

void Digest::add(std::string_view text) {
    add(std::uint64_t{text.size()});
    add(std::as_bytes(std::span(text)));
}

std::string Digest::hex() const {
    XXH128_canonical_t canonical{};
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->state));
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : canonical.digest) {
        text += digits[byte / 16];
        text += digits[byte % 16];
    }
    return text;
}

std::uint64_t Digest::value() const { return XXH3_128bits_digest(&state_->state).low64; }

}  // namespace lockstep
