#include "lockstep/parallel/data/sharded_tensor.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"

namespace lockstep {

ShardedTensor::ShardedTensor(BatchCut cut, std::vector<Tensor> shards, std::shared_ptr<std::vector<Event>> ready,
                             ShardRange held)
    : cut_(cut), shards_(std::move(shards)), ready_(std::move(ready)), held_(held) {
    const auto present = static_cast<std::size_t>(cut.present);
    if (shards_.size() != present || (ready_ && ready_->size() < present))
        throw InvalidArgument(
            fmt::format("ShardedTensor: {} tensors and {} events for {} shards that have rows; expected one for each, "
                        "including those of other processes",
                        shards_.size(), ready_ ? fmt::format("{}", ready_->size()) : "no", present));
}

Tensor ShardedTensor::gathered() const {
    if (shards() == 0) return Tensor();
    Shape shape = shard(0).shape();
    shape[0] = 0;
    for (int i = held_.first; i < held_.last; ++i) shape[0] += cut_.rows_of(i);
    const Tensor whole = Tensor::empty(shape, shard(0).dtype());
    std::int64_t first = 0;
    for (int i = held_.first; i < held_.last; ++i) {
        if (const Event* event = ready(i)) event->synchronize();
        whole.slice(0, first, first + shard(i).size(0)).copy_(shard(i));
        first += shard(i).size(0);
    }
    return whole;
}

}  // namespace lockstep
