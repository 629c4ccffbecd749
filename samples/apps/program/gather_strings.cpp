#include "lockstep/samples/apps/program/gather_strings.h"

#include <algorithm>
#include <cstdint>

namespace program {

std::vector<std::string> gather_strings(lockstep::ProcessGroup& group, std::string own) {
    const std::int64_t ranks = group.size();
    const auto sizes = lockstep::Tensor::zeros({ranks}, lockstep::DType::i64);
    group.all_gather(sizes, lockstep::Tensor::from(std::vector{static_cast<std::int64_t>(own.size())}, {1}));
    const std::vector<std::int64_t> lengths = sizes.to_vector<std::int64_t>();
    const std::int64_t longest = std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
    own.resize(static_cast<std::size_t>(longest));
    const auto all = lockstep::Tensor::zeros({ranks, longest}, lockstep::DType::u8);
    group.all_gather(all, lockstep::Tensor::from(std::vector<std::uint8_t>(own.begin(), own.end()), {longest}));
    const std::vector<std::uint8_t> bytes = all.to_vector<std::uint8_t>();
    std::vector<std::string> texts;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto begin = bytes.begin() + rank * longest;
        texts.emplace_back(begin, begin + lengths[static_cast<std::size_t>(rank)]);
    }
    return texts;
}

}  // namespace program
