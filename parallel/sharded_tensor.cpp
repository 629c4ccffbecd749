#include "lockstep/parallel/sharded_tensor.h"

namespace lockstep {

Tensor ShardedTensor::gathered() const {
    if (shards_.empty()) return Tensor();
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
