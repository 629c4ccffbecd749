#include "lockstep/parallel/comm/gradient_bucket.h"

namespace lockstep {

std::vector<Tensor> GradientBucket::gradients() const {
    std::vector<Tensor> views;
    for (const Part& part : parts_) views.push_back(buffer_.slice(0, part.begin, part.end).reshape(part.shape));
    return views;
}

}  // namespace lockstep
