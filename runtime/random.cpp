#include "lockstep/runtime/random.h"

#include <cmath>
#include <mutex>
#include <numbers>

#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

/// Ordinal of the host generator: no operation of a `forward` reaches it.
constexpr std::uint32_t host_ordinal = 0xFFFFFFFFu;

struct HostGenerator {
    std::mutex mutex;
    std::uint64_t seed = 0;
    std::uint64_t position = 0;
};

HostGenerator& generator() {
    static HostGenerator instance;
    return instance;
}

/// Starting positions of `count` new elements; rounded so that calls never share a Philox block.
std::uint64_t advance(std::int64_t count, StepCounters& state) {
    const std::scoped_lock lock(generator().mutex);
    state.seed = generator().seed;
    const std::uint64_t start = generator().position;
    generator().position += round_up(static_cast<std::uint64_t>(count), 4);
    return start;
}

}  // namespace

void manual_seed(std::uint64_t seed) {
    {
        const std::scoped_lock lock(generator().mutex);
        generator().seed = seed;
        generator().position = 0;
    }
    eager_state::reseed(seed);
}

std::uint64_t current_seed() {
    const std::scoped_lock lock(generator().mutex);
    return generator().seed;
}

HostRandomScope::HostRandomScope() {
    const std::scoped_lock lock(generator().mutex);
    position_ = generator().position;
}

HostRandomScope::~HostRandomScope() {
    const std::scoped_lock lock(generator().mutex);
    generator().position = position_;
}

std::uint64_t host_random_position() {
    const std::scoped_lock lock(generator().mutex);
    return generator().position;
}

void set_host_random_position(std::uint64_t position) {
    const std::scoped_lock lock(generator().mutex);
    generator().position = position;
}

void host_uniform(float* out, std::int64_t count, float low, float high) {
    StepCounters state;
    const std::uint64_t start = advance(count, state);
    for (std::int64_t i = 0; i < count; ++i)
        out[i] =
            low + (high - low) * to_uniform(random_bits(state, host_ordinal, start + static_cast<std::uint64_t>(i)));
}

void host_integers(std::int64_t* out, std::int64_t count, std::uint64_t end) {
    StepCounters state;
    const std::uint64_t start = advance(2 * count, state);
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint64_t at = start + 2 * static_cast<std::uint64_t>(i);
        const std::uint64_t bits = static_cast<std::uint64_t>(random_bits(state, host_ordinal, at)) << 32 |
                                   random_bits(state, host_ordinal, at + 1);
        // The upper half of the product: a bias of at most end / 2^64.
        out[i] =
            static_cast<std::int64_t>(static_cast<std::uint64_t>(static_cast<unsigned __int128>(bits) * end >> 64));
    }
}

void host_normal(float* out, std::int64_t count) {
    StepCounters state;
    const std::uint64_t start = advance(2 * count, state);
    for (std::int64_t i = 0; i < count; ++i) {  // Box-Muller
        const std::uint64_t at = start + 2 * static_cast<std::uint64_t>(i);
        const double u = (static_cast<double>(random_bits(state, host_ordinal, at)) + 1.0) / 4294967296.0;
        const double v = static_cast<double>(random_bits(state, host_ordinal, at + 1)) / 4294967296.0;
        out[i] = static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
    }
}

}  // namespace lockstep
