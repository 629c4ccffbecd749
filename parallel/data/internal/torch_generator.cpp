#include "lockstep/parallel/data/internal/torch_generator.h"

#include <fmt/format.h>

#include <limits>
#include <numeric>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep {

std::vector<std::int64_t> rows_in_order(const char* who, std::int64_t length) {
    if (length < 0) throw InvalidArgument(fmt::format("{}: a dataset of {} rows; expected 0 or more", who, length));
    std::vector<std::int64_t> rows(static_cast<std::size_t>(length));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
}

std::uint64_t TorchGenerator::bits64() {
    const std::uint64_t upper = random_();
    return upper << 32 | random_();
}

double TorchGenerator::uniform() {
    constexpr std::uint64_t lower_53_bits = (std::uint64_t{1} << 53) - 1;
    return static_cast<double>(bits64() & lower_53_bits) * 0x1p-53;
}

std::int64_t TorchGenerator::below(std::int64_t high) {
    const auto range = static_cast<std::uint64_t>(high);
    return static_cast<std::int64_t>((range >> 28 == 0 ? random_() : bits64()) % range);
}

void TorchGenerator::require_permutable(const char* who, std::int64_t length) {
    constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max() / 20;
    if (length < 0 || length >= most)
        throw InvalidArgument(fmt::format(
            "{}: {} rows; expected fewer than {}, for which PyTorch's order is reproduced", who, length, most));
}

std::vector<std::int64_t> TorchGenerator::permutation(const char* who, std::int64_t length) {
    require_permutable(who, length);
    std::vector<std::int64_t> rows = rows_in_order(who, length);
    for (std::size_t i = 0; i + 1 < rows.size(); ++i) std::swap(rows[i], rows[i + random_() % (rows.size() - i)]);
    return rows;
}

}  // namespace lockstep
