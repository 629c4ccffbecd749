#include "lockstep/parallel/data/row_context.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

// Apart from the ordinals of masks, which count from 0, and from that of shuffled_order.
constexpr std::uint32_t ordinal_of_keys = 0x726f776b, ordinal_of_draws = 0x726f7764;

std::uint64_t word_of(std::uint32_t upper, std::uint32_t lower) { return std::uint64_t{upper} << 32 | lower; }

}  // namespace

RowContext::RowContext(EpochKey epoch, std::int64_t row) : epoch_(epoch.epoch), row_(row) {
    StepState of_epoch;
    of_epoch.seed = epoch.seed;
    of_epoch.step = epoch.epoch;
    const auto bits = philox(of_epoch, ordinal_of_keys, static_cast<std::uint64_t>(row));
    state_.seed = key_ = word_of(bits[0], bits[1]);
    state_.step = word_of(bits[2], bits[3]);
}

std::uint64_t RowContext::bits() {
    const auto bits = philox(state_, ordinal_of_draws, drawn_++);
    return word_of(bits[0], bits[1]);
}

double RowContext::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

double RowContext::uniform(double low, double high) {
    if (!(low <= high) || !std::isfinite(low) || !std::isfinite(high) || !std::isfinite(high - low))
        throw InvalidArgument(
            fmt::format("uniform: from {} to {}; expected finite bounds in ascending order", low, high));
    const double number = low + (high - low) * uniform();
    return number < high ? number : low;  // rounded up
}

std::int64_t RowContext::integer(std::int64_t count) {
    if (count < 1)
        throw InvalidArgument(fmt::format("integer: one of {} numbers; expected a count of at least 1", count));
    // 64 random bits scaled to `count`: a bias that nobody can see.
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::int64_t>((Wide{bits()} * static_cast<std::uint64_t>(count)) >> 64);
}

bool RowContext::flip(double probability) {
    if (!(probability >= 0 && probability <= 1))
        throw InvalidArgument(fmt::format("flip: a probability of {}; expected 0 to 1", probability));
    return uniform() < probability;
}

}  // namespace lockstep
